//! What the workers share, and the verification of a password on the offload pool.

use super::WRONG_LOGIN;
use super::remembered::{REMEMBERED_MS, Remembered, Tag, TagKey};
use super::report::{Method, Report};
use super::standing::Latest;
use super::throttle::{Admission, Taken, Throttle};
use super::users::{UserId, Users};
use crate::files::http::http_error::HttpError;
use crate::shares::{Holder, Share, Shares};
use onrush::WorkerHandle;
use onrush::offload::OffloadError;
use onrush_store::sync::Exclusive;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The maximum number of logins that wait for their turn, or for another one with the same
/// credentials.
const WAITING_MAX: usize = 4096;

const BUSY: HttpError = HttpError::new(503, "too many logins at once; try again later");
const FAILED: HttpError = HttpError::new(500, "the password could not be verified");

/// Credentials that have to be verified.
pub(crate) struct Attempt {
    pub(crate) tag: Tag,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) address: Option<IpAddr>,
}

/// What the workers share. Only requests whose credentials a worker does not remember use it, but
/// for the generation.
pub(crate) struct Shared {
    state: Mutex<VerifierState>,
    /// The number of times that the users were replaced.
    generation: AtomicU64,
    /// Also of the applications that have replaced this one.
    latest: Arc<Latest>,
    tag_key: TagKey,
    /// One verification at a time for equal credentials: a client with many connections costs one
    /// password hash. The others wait for its result.
    verifying: Exclusive<Tag>,
    /// Also of other users of the same server.
    throttle: Arc<Mutex<Throttle>>,
    /// The places of logins that wait, of which each address has a share.
    waiting: Arc<Shares>,
    pub(crate) report: Arc<Report>,
}

struct VerifierState {
    generation: u64,
    users: Arc<Users>,
    /// Of `users`.
    remembered: Remembered<UserId>,
}

/// Counts a login that waits, of all and of its address.
struct Waiting<'s> {
    shared: &'s Shared,
    address: Option<IpAddr>,
    _share: Share,
}

impl<'s> Waiting<'s> {
    fn begin(
        shared: &'s Shared,
        address: Option<IpAddr>,
        now_ms: u64,
    ) -> Result<Waiting<'s>, HttpError> {
        let share = shared.waiting.take(Holder::address(address), 1);
        let share = share.map_err(|_| HttpError::too_many_logins(1))?;
        if !shared.throttle().begin_wait(address, now_ms) {
            return Err(HttpError::too_many_logins(1));
        }
        shared.report.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(Waiting {
            shared,
            address,
            _share: share,
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.report.waiting.fetch_sub(1, Ordering::Relaxed);
        self.shared.throttle().end_wait(self.address);
    }
}

/// A login that the throttle has admitted. It has failed if it is dropped without another outcome,
/// as when its client disconnects.
struct AdmittedLogin<'s> {
    shared: &'s Shared,
    worker: &'s WorkerHandle,
    address: Option<IpAddr>,
    place: Taken,
    has_failed: bool,
}

impl Drop for AdmittedLogin<'_> {
    fn drop(&mut self) {
        let now_ms = self.worker.now_ms();
        let mut throttle = self.shared.throttle();
        let woken = throttle.finish(self.address, self.place, self.has_failed, now_ms);
        drop(throttle); // A waker may belong to any executor.
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    pub(crate) fn new(users: Users) -> Shared {
        Shared::after(Arc::default(), users)
    }

    /// For users that replace those of `latest`.
    fn after(latest: Arc<Latest>, users: Users) -> Shared {
        Shared {
            state: Mutex::new(VerifierState {
                generation: 0,
                users: latest.install(users),
                remembered: Remembered::default(),
            }),
            generation: AtomicU64::new(0),
            latest,
            tag_key: TagKey::random(),
            verifying: Exclusive::default(),
            throttle: Arc::default(),
            waiting: Shares::new("logins", WAITING_MAX),
            report: Arc::default(),
        }
    }

    /// Other users, with the delays and counts of this value.
    pub(crate) fn with_users(&self, users: Users) -> Shared {
        Shared {
            throttle: self.throttle.clone(),
            waiting: self.waiting.clone(),
            report: self.report.clone(),
            ..Shared::after(self.latest.clone(), users)
        }
    }

    fn state(&self) -> MutexGuard<'_, VerifierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn replace(&self, users: Users) {
        let mut state = self.state();
        state.generation += 1;
        state.users = self.latest.install(users);
        state.remembered.clear();
        self.generation.store(state.generation, Ordering::Release);
    }

    pub(crate) fn latest(&self) -> &Arc<Latest> {
        &self.latest
    }

    /// The number of replacements. Reading it costs no more than any value that rarely changes.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn users(&self) -> (u64, Arc<Users>) {
        let state = self.state();
        (state.generation, state.users.clone())
    }

    pub(crate) fn tag(&self, value: &[u8]) -> Tag {
        self.tag_key.tag(value)
    }

    /// The user of credentials that another worker has verified, if `generation` is still present.
    pub(crate) fn recall(&self, tag: Tag, generation: u64, now_ms: u64) -> Option<(UserId, u64)> {
        let state = self.state();
        let (id, until_ms) = state.remembered.get(tag, now_ms)?;
        (state.generation == generation).then_some((*id, until_ms))
    }

    /// Waits until a login of this address may be verified.
    async fn turn<'s>(
        &'s self,
        address: Option<IpAddr>,
        worker: &'s WorkerHandle,
    ) -> Result<AdmittedLogin<'s>, HttpError> {
        let mut waiting = None;
        let admission = poll_fn(|cx| {
            let now_ms = worker.now_ms();
            let admission = self.throttle().admit(address, now_ms, cx.waker());
            match admission {
                Some(admission) => Poll::Ready(Ok(admission)),
                None if waiting.is_some() => Poll::Pending,
                None => match Waiting::begin(self, address, now_ms) {
                    Ok(counted) => {
                        waiting = Some(counted);
                        Poll::Pending
                    }
                    Err(failure) => Poll::Ready(Err(failure)),
                },
            }
        });
        let (wait_ms, place) = match admission.await? {
            Admission::After { wait_ms, place } => (wait_ms, place),
            Admission::Refused { retry_after_s } => {
                return Err(HttpError::too_many_logins(retry_after_s));
            }
        };
        let turn = AdmittedLogin {
            shared: self,
            worker,
            address,
            place,
            has_failed: true,
        };
        if wait_ms > 0 {
            if waiting.is_none() {
                waiting = Some(Waiting::begin(self, address, worker.now_ms())?);
            }
            worker.sleep(Duration::from_millis(wait_ms)).await;
        }
        drop(waiting);
        Ok(turn)
    }

    /// Verifies a password. Logins with the same credentials share the work; logins of an address
    /// from which others have failed wait before.
    pub(crate) async fn verify(
        &self,
        attempt: Attempt,
        worker: &WorkerHandle,
    ) -> Result<(Arc<Users>, UserId), HttpError> {
        let Attempt {
            tag,
            user,
            password,
            address,
        } = attempt;
        let password = Arc::new(password);
        let leader = loop {
            let (generation, users) = self.users();
            if let Some((id, _)) = self.recall(tag, generation, worker.now_ms()) {
                return Ok((users, id));
            }
            let _waiting = Waiting::begin(self, address, worker.now_ms())?;
            // Without a leader, another verification has ended: with success, or it is repeated.
            if let Some(leader) = self.verifying.acquire_or_wait(tag).await {
                break leader;
            }
        };
        let mut turn = self.turn(address, worker).await?;
        let (generation, users) = self.users();
        let id = users.by_name(&user);
        let hash = id.and_then(|id| users.user(id).password.clone());
        let is_known = hash.is_some();
        // An unknown user costs as much time as a known one.
        let is_right = match hash.or_else(|| users.any_password().cloned()) {
            Some(hash) => {
                let verified = worker
                    .offload(move || hash.verify(password.as_bytes()))
                    .await;
                verified.map_err(|error| {
                    turn.has_failed = false; // Nothing was verified.
                    match error {
                        OffloadError::Full | OffloadError::TimedOut => BUSY,
                        OffloadError::Panicked => FAILED,
                    }
                })?
            }
            None => false,
        };
        let succeeded = is_right && is_known;
        self.report.verified(Method::Password, succeeded);
        let now_ms = worker.now_ms();
        let Some(id) = id.filter(|_| succeeded) else {
            self.report
                .log_failure(Method::Password, Some(&user), address, now_ms);
            return Err(WRONG_LOGIN);
        };
        turn.has_failed = false;
        drop(turn);
        let mut state = self.state();
        if state.generation != generation {
            return Err(BUSY); // The users were replaced meanwhile.
        }
        state
            .remembered
            .insert(tag, id, now_ms, now_ms + REMEMBERED_MS);
        drop(state);
        drop(leader); // Those that wait find the result.
        Ok((users, id))
    }
}
