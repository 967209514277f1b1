//! States of Terraform and OpenTofu (their backend `http`): objects whose names end with
//! `.tfstate`, each with a lock.
//!
//! | request | response |
//! | --- | --- |
//! | LOCK with JSON that has an `ID` | 200 with that JSON; 423 with that of the holder |
//! | UNLOCK with such JSON | 200; 409 with that of the holder, if it has another `ID` |
//! | POST or PUT with `?ID=` | as a PUT; 423 if the lock has another `ID` |
//! | DELETE | 200; 423 if there is a lock and `?ID=` is not its `ID` |
//!
//! A lock is an object of the state of the server ([`Key::state`]), so it outlives a restart, and
//! each server of the same store finds it. A release deletes it, or empties it where the store
//! cannot delete under a condition. Each change of it has the condition that it is the one that was
//! read, so one of several clients gets a lock. An update is refused before its body is read, and
//! again before the commit.
//!
//! Nothing else changes a state while the option is on: copies, forms and uploads that continue
//! have no `ID`. Changes of a folder leave the states in it as they are, or are refused.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::object;
use crate::files::path;
use crate::files::put::state_locks::LockVersion;
use crate::files::put::writes::Writes;
use crate::files::shared::client_rights::check_right;
use crate::files::shared::client_shares::STATE_LOCKS_MAX;
use crate::hex::hex;
use crate::rights::Rights;
use crate::shares::{Holder, Share};
use onrush::{Request, Response};
use onrush_store::{Condition, Key, Kind, ListHow, StoreError, Version};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::io;

/// The maximum size of what a client says about its lock.
const LOCK_BYTES_MAX: usize = 8 << 10;
/// Where they are, beneath the state of the server.
const FOLDER: &str = "terraform";
/// Attempts to change a lock while others change it.
const ATTEMPTS: usize = 8;

const BAD_LOCK: HttpError = HttpError::new(400, "the body is no JSON object with an ID");
const LOCKED: HttpError =
    HttpError::new(423, "the state is locked, and ID is not that of its lock");
const TOO_BUSY: HttpError = HttpError::new(503, "the lock is being changed by others; try again");

/// A lock that is held.
struct Held {
    /// What its holder has said about it.
    info: Vec<u8>,
    id: String,
}

/// The update of a state.
pub(in crate::files) struct StateUpdate {
    /// The `ID` in the query.
    id: Option<String>,
}

impl Writes {
    /// What an update needs to know; `None` if the object is no state.
    pub(in crate::files) fn state_update(
        &self,
        request: &Request,
        key: &Key,
    ) -> Result<Option<StateUpdate>, HttpError> {
        if !self.objects.is_state_key(key) {
            return Ok(None);
        }
        let parts = request.query().unwrap_or_default().split('&');
        let mut ids = parts.filter_map(|part| part.strip_prefix("ID="));
        let id = match ids.next() {
            Some(id) => String::from_utf8(path::decode_query(id)?).ok(),
            None => None,
        };
        Ok(Some(StateUpdate { id }))
    }

    /// Fails with 423 if `key` is a state that is locked with another `ID`. `None`: it is none.
    pub(in crate::files) async fn check_state_lock(
        &self,
        key: &Key,
        update: Option<&StateUpdate>,
    ) -> Result<(), HttpError> {
        match update {
            Some(update) => Box::pin(self.compare_lock(key, update)).await,
            None => Ok(()),
        }
    }

    async fn compare_lock(&self, key: &Key, update: &StateUpdate) -> Result<(), HttpError> {
        match self.read_lock(&lock_key(key)?).await?.1 {
            Some(held) if update.id.as_ref() != Some(&held.id) => Err(LOCKED),
            _ => Ok(()),
        }
    }

    /// LOCK and UNLOCK.
    pub(in crate::files) async fn change_state_lock(
        &self,
        mut request: Request,
    ) -> Result<Response, HttpError> {
        let key = self
            .objects
            .state_key(&request)?
            .ok_or(HttpError::NOT_FOUND)?;
        check_right(&request, Rights::WRITE)?;
        let is_lock = request.method() == "LOCK";
        let read = request.body().read_all(LOCK_BYTES_MAX).await;
        let info = read.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => HttpError::new(413, "the JSON is longer than 8 KiB"),
            _ => crate::files::receive::upload::body_failure(error),
        })?;
        let asked = Held::parse(info).ok_or(BAD_LOCK)?;
        if is_lock {
            self.objects.check_distinct_names(&key).await?;
        }
        check_right(&request, Rights::WRITE)?; // The users may be others by now.
        let at = lock_key(&key)?;
        let mut share = None;
        for _ in 0..ATTEMPTS {
            let (version, held) = self.read_lock(&at).await?;
            let next = match (is_lock, held) {
                // Also if its holder asks again, because it has not seen the response. If this
                // request has a share, it has made the lock, and the store has not said so.
                (true, Some(held)) if held.id == asked.id => {
                    self.state_locks.insert(&at, version, share);
                    return Ok(json(200, held.info));
                }
                (true, Some(held)) => return Ok(json(423, held.info)),
                (false, None) => return Ok(Response::new(200)),
                (false, Some(held)) if held.id != asked.id => return Ok(json(409, held.info)),
                (true, None) => Some(&asked.info[..]),
                (false, Some(_)) => None,
            };
            if !is_lock {
                let held = version.map(|version| (at.name().to_vec(), version));
                share = held.and_then(|held| self.state_locks.lock().remove(&held));
            } else if share.is_none() {
                share = Some(self.take_lock_share(&request).await?);
            }
            match self.replace_lock(&at, version, next).await {
                Ok(new) if is_lock => {
                    self.state_locks.insert(&at, Some(new), share);
                    return Ok(json(200, asked.info));
                }
                Ok(_) => return Ok(Response::new(200)),
                // Another client was faster, or the change was made before its response was lost.
                Err(StoreError::PreconditionFailed) => {}
                Err(error) => {
                    if !is_lock {
                        self.state_locks.insert(&at, version, share); // It may still be there.
                    }
                    return Err(self
                        .objects
                        .store_failure(error, Operation::Write, Some(&key)));
                }
            }
        }
        Err(TOO_BUSY)
    }

    /// The version of the object of a lock, if there is one, and the lock, if it is held.
    async fn read_lock(&self, at: &Key) -> Result<(Option<Version>, Option<Held>), HttpError> {
        let read = async || {
            let object = match self.objects.store.get(at).await {
                Err(StoreError::NotFound) => return Ok((None, None)),
                object => object?,
            };
            let size = usize::try_from(object.meta().size).unwrap_or(usize::MAX);
            let bytes = object::read(&object, size.min(LOCK_BYTES_MAX)).await?;
            Ok((Some(object.meta().version), Held::parse(bytes)))
        };
        for _ in 0..ATTEMPTS {
            match read().await {
                Err(StoreError::Changed) => {} // At this moment, by another server.
                Err(error) => {
                    return Err(self.objects.store_failure(error, Operation::Read, Some(at)));
                }
                Ok(found) => return Ok(found),
            }
        }
        Err(TOO_BUSY)
    }

    /// Takes the share of another lock.
    async fn take_lock_share(&self, request: &Request) -> Result<Share, HttpError> {
        let mut ours: HashSet<LockVersion> = self.state_locks.lock().keys().cloned().collect();
        let how = ListHow {
            limit: STATE_LOCKS_MAX,
            hidden: true,
            ..ListHow::default()
        };
        let folder = Key::state(FOLDER.as_bytes());
        let folder = folder.map_err(|error| HttpError::from_store(error, Operation::Write))?;
        let (mut others, mut is_complete) = (0, true);
        match self.objects.store.list(Some(&folder), how).await {
            Err(StoreError::NotFound) => {}
            Err(error) => return Err(self.objects.store_failure(error, Operation::Read, None)),
            Ok(page) => {
                is_complete = page.next.is_none();
                for entry in page.entries.into_iter().filter(|entry| entry.size > 0) {
                    others += usize::from(!ours.remove(&(entry.name, entry.version)));
                }
            }
        }
        // Other servers have released what is left of these, if all were listed.
        if is_complete {
            self.state_locks
                .lock()
                .retain(|held, _| !ours.contains(held));
        }
        let shares = &self.objects.shares.state_locks;
        shares.set_total(STATE_LOCKS_MAX.saturating_sub(others));
        let share = shares.take(Holder::of(request), 1);
        share.map_err(|full| {
            let own = "this client has too many locks of states";
            HttpError::full(full, own, "there are too many locks of states")
        })
    }

    /// Replaces a lock by this content, or releases it. Returns the version that it has then, or
    /// had.
    async fn replace_lock(
        &self,
        at: &Key,
        version: Option<Version>,
        content: Option<&[u8]>,
    ) -> Result<Version, StoreError> {
        let condition = match version {
            Some(version) => Condition::Versions(vec![version]),
            None => Condition::Absent,
        };
        if content.is_none() {
            let deleted = self
                .objects
                .store
                .delete(at, Kind::File, condition.clone())
                .await;
            match deleted {
                Err(StoreError::Unsupported) => {}
                Err(StoreError::NotFound) => return Err(StoreError::PreconditionFailed),
                deleted => return deleted.map(|deleted| deleted.version),
            }
        }
        let content = content.unwrap_or_default();
        let size = Some(content.len() as u64);
        let mut object = self.objects.store.stage(at, condition, size).await?;
        if !content.is_empty() {
            object.write(content.to_vec()).await?;
        }
        let committed = object.commit().await?;
        Ok(committed.meta.version)
    }
}

impl Held {
    /// `None` if it is no JSON object with an `ID`.
    fn parse(info: Vec<u8>) -> Option<Held> {
        let value: serde_json::Value = serde_json::from_slice(&info).ok()?;
        let id = value.get("ID")?.as_str()?.to_owned();
        (!id.is_empty()).then_some(Held { info, id })
    }
}

/// The key of the lock of a state. The name of a state may be longer than names of the server are.
fn lock_key(key: &Key) -> Result<Key, HttpError> {
    let name = format!("{FOLDER}/{}", hex(&Sha256::digest(key.as_bytes())));
    Key::state(name.as_bytes()).map_err(|error| HttpError::from_store(error, Operation::Write))
}

fn json(status: u16, content: Vec<u8>) -> Response {
    Response::with_body(content)
        .with_status(status)
        .content_type("application/json")
        .with_header("Cache-Control", "no-store")
        .with_header("X-Content-Type-Options", "nosniff")
}
