//! Automatic certificates: ordered from an ACME authority (RFC 8555), kept in the served folder,
//! and renewed.
//!
//! A thread of its own does this. It sleeps until an order is due, and runs a small tokio runtime
//! only while it orders. The new certificate goes to a file, and the thread of `tls` loads it like
//! any changed file. Until there is a first certificate, the server has a temporary one that no
//! client trusts.
//!
//! Modules, lowest first: `schedule` (when), `control` (requests of other threads) · `store`
//! (files), `client` (HTTPS) · `order`.

mod client;
mod control;
mod order;
mod schedule;
mod store;

pub(crate) use control::Orders;
pub(crate) use store::certificate_path;

use crate::config::AcmeSettings;
use crate::process::failure::{self, Failure};
use crate::process::reload::Reload;
use client::{HttpsClient, RetryAfter};
use instant_acme::{Account, NewAccount};
use onrush::tls::TlsConfig;
use onrush_files::HttpChallenges;
use onrush_proto::date::utc;
use order::{Issued, Method, OrderError, Responses, Wanted};
use schedule::{Attempts, Cause};
use std::future::poll_fn;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::{SavedAccount, Store, Unusable};
use tokio::time::timeout;

/// The time limit for an order. The authority has a limit for each of its steps.
const ORDER_TIMEOUT: Duration = Duration::from_secs(600);
/// How long to wait while another process orders for the same folder.
const LOCKED_PAUSE: Duration = Duration::from_secs(15);
/// The most characters of an authority's text in a log line.
const REASON_CHARS_MAX: usize = 1000;
/// The longest sleep. The clock may be changed meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The orders of one server.
struct Acme {
    settings: AcmeSettings,
    subject: String,
    store: Store,
    tls: TlsConfig,
    http: Option<HttpChallenges>,
    reload: Reload,
    requests: Orders,
    /// There was a request to try at once. It ends the pauses after failures.
    is_retry: bool,
    /// How often the authority could not be reached, one time after the other.
    unreachable: u32,
    /// An authority that could not be reached is tried again after this time.
    not_before: Option<SystemTime>,
}

/// Starts the thread that orders and renews the certificate. `dir` is the served folder. `http` is
/// `None` if no port redirects to HTTPS.
pub(crate) fn start(
    settings: &AcmeSettings,
    dir: &Path,
    tls: TlsConfig,
    http: Option<HttpChallenges>,
    reload: Reload,
) -> Result<Orders, Failure> {
    let fail = |what: &str, error: &io::Error| {
        Failure::run(format!("acme: {what}: {}", failure::error_text(error)))
    };
    let store = Store::open(dir).map_err(|error| {
        let folder = certificate_path(dir);
        let folder = folder.parent().unwrap_or(dir).display().to_string();
        fail(&format!("cannot keep certificates in {folder}"), &error)
    })?;
    // A wrong file is found now, not when the first order is due.
    HttpsClient::new(settings.ca.as_deref(), RetryAfter::default()).map_err(Failure::usage)?;
    let requests = Orders::default();
    let mut acme = Acme {
        subject: store::subject(settings),
        settings: settings.clone(),
        store,
        tls,
        http,
        reload,
        requests: requests.clone(),
        is_retry: false,
        unreachable: 0,
        not_before: None,
    };
    let thread = thread::Builder::new().name("onrush-acme".to_owned());
    let spawned = thread.spawn(move || acme.run());
    spawned.map_err(|error| fail("cannot start a thread", &error))?;
    Ok(requests)
}

impl Acme {
    fn run(&mut self) {
        self.log_next();
        while !self.requests.is_stopped() {
            match self.wait(SystemTime::now()) {
                Duration::ZERO => {
                    // The attempt was recorded when it began, so the next one waits.
                    let attempt = AssertUnwindSafe(|| self.attempt());
                    if panic::catch_unwind(attempt).is_err() {
                        tracing::error!("the order of a certificate has panicked");
                        self.requests.sleep(LOCKED_PAUSE);
                    }
                }
                wait => {
                    if std::mem::take(&mut self.is_retry) {
                        self.log_next();
                    }
                    self.requests.sleep(wait.min(SLEEP_MAX));
                }
            }
            self.is_retry |= self.requests.take_retry();
        }
        self.requests.end();
    }

    /// When the certificate of the folder is renewed. `None` if there is none for these names.
    fn renewal(&self) -> Option<SystemTime> {
        let stored = self.store.certificate()?;
        let renewal = schedule::renewal(stored.not_before, stored.not_after);
        (stored.subject == self.subject).then_some(renewal)
    }

    /// How long the next order has to wait.
    fn wait(&self, now: SystemTime) -> Duration {
        let attempts = self.store.attempts(&self.subject);
        if self.is_retry {
            return self.wait_at_least(&attempts, now);
        }
        let unreachable = self.not_before.map(|time| until(time, now));
        let failed = attempts.wait(now).max(unreachable.unwrap_or_default());
        self.wait_at_least(&attempts, now).max(failed)
    }

    /// How long the next order has to wait even after a request to try at once: for the renewal,
    /// and as long as the authority has asked for.
    fn wait_at_least(&self, attempts: &Attempts, now: SystemTime) -> Duration {
        let renewal = self.renewal().map(|time| until(time, now));
        renewal.unwrap_or_default().max(attempts.limit(now))
    }

    /// What an operator can do about the pause.
    fn advice(&self, now: SystemTime) -> &'static str {
        let attempts = self.store.attempts(&self.subject);
        match () {
            () if self.wait_at_least(&attempts, now).is_zero() => "; SIGHUP orders it at once",
            () if !attempts.limit(now).is_zero() => "; the authority has asked for this pause",
            () => "",
        }
    }

    fn log_next(&self) {
        let now = SystemTime::now();
        let wait = self.wait(now);
        if !wait.is_zero() {
            let (next, advice) = (utc(now + wait), self.advice(now));
            tracing::info!(next, "the next certificate is ordered at this time{advice}");
        }
    }

    /// Orders a certificate, unless another process does.
    fn attempt(&mut self) {
        let lock = match self.store.lock() {
            Ok(Some(lock)) => lock,
            Ok(None) => {
                tracing::warn!(
                    "another process orders the certificate of this folder; only that process \
                     responds to the validation"
                );
                return self.requests.sleep(LOCKED_PAUSE);
            }
            Err(error) => {
                self.log_store_error(&error);
                return self.requests.sleep(LOCKED_PAUSE);
            }
        };
        // Another process may have ordered until now.
        if !self.wait(SystemTime::now()).is_zero() {
            self.reload.request_alone();
            return self.log_next();
        }
        let before = self.store.attempts(&self.subject);
        let begun = before.begun(SystemTime::now());
        // An order that cannot be recorded could be repeated without end.
        if let Err(error) = self.store.save_attempts(&begun) {
            self.log_store_error(&error);
            return self.requests.sleep(LOCKED_PAUSE);
        }
        self.is_retry = false;
        let method = match (before.failures % 2, &self.http) {
            (1, Some(_)) => Method::Http01,
            _ => Method::TlsAlpn01,
        };
        self.log_begin(method);
        let retry_after = RetryAfter::default();
        match self.order(method, &retry_after) {
            Some(Ok(issued)) => self.install(&issued, begun),
            Some(Err(error)) => {
                let pause = error.pause.or(retry_after.get());
                self.note_failure(&before, &error, pause);
            }
            // The process ends.
            None => self.save_attempts(&before),
        }
        drop(lock);
    }

    fn log_begin(&self, method: Method) {
        let names = self.settings.names.join(" ");
        let directory = &self.settings.directory;
        match self.store.order(&self.subject, SystemTime::now()) {
            Some(_) => tracing::info!(
                names,
                directory,
                "the order of a certificate is being continued"
            ),
            None => tracing::info!(
                names,
                method = method.name(),
                directory,
                "a certificate is being ordered"
            ),
        }
    }

    /// Orders a certificate on a runtime that exists only for that. `None`: the process ends.
    fn order(
        &self,
        method: Method,
        retry_after: &RetryAfter,
    ) -> Option<Result<Issued, OrderError>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                let error = OrderError::new(Cause::Unreachable, error.to_string());
                return Some(Err(error));
            }
        };
        let wanted = Wanted {
            names: &self.settings.names,
            subject: &self.subject,
            method,
            responses: Responses {
                tls: &self.tls,
                http: self.http.as_ref(),
            },
            store: &self.store,
        };
        let order = async {
            let account = self.account(retry_after).await?;
            match order::run(&account, &wanted).await {
                Err(error) if error.account_is_unknown => {
                    self.store.forget_account();
                    let account = self.account(retry_after).await?;
                    order::run(&account, &wanted).await
                }
                result => result,
            }
        };
        let ordered = runtime.block_on(async {
            let (mut order, mut stopped) = (
                pin!(timeout(ORDER_TIMEOUT, order)),
                pin!(self.requests.stopped()),
            );
            poll_fn(|cx| match stopped.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => order.as_mut().poll(cx).map(Some),
            })
            .await
        });
        // A search for an address may still run.
        runtime.shutdown_background();
        let late = |_| {
            let saved = self.store.order(&self.subject, SystemTime::now());
            let cause = saved.map_or(Cause::Refused, |_| Cause::Unreachable);
            Err(OrderError::new(cause, "the order took too long"))
        };
        ordered.map(|result| result.unwrap_or_else(late))
    }

    /// The account of this folder at the authority. Creates it if there is none.
    async fn account(&self, retry_after: &RetryAfter) -> Result<Account, OrderError> {
        let failed = |reason: String| OrderError::new(Cause::Unreachable, reason);
        let AcmeSettings {
            email, directory, ..
        } = &self.settings;
        let client = HttpsClient::new(self.settings.ca.as_deref(), retry_after.clone());
        let builder = Account::builder_with_http(Box::new(client.map_err(failed)?));
        let contact = email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.as_deref().into_iter().collect();
        if let Some(mut saved) = self.store.account(directory) {
            // `AccountCredentials` cannot be cloned, so they pass through JSON.
            let credentials = serde_json::to_string(&saved.credentials);
            let account = builder.from_credentials(saved.credentials).await?;
            if saved.email != *email {
                account.update_contacts(&contact).await?;
                let same = credentials.and_then(|text| serde_json::from_str(&text));
                saved = SavedAccount {
                    directory: directory.clone(),
                    email: email.clone(),
                    credentials: same.map_err(|error| failed(error.to_string()))?,
                };
                self.save_account(&saved)?;
            }
            return Ok(account);
        }
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (account, credentials) = builder.create(&new, directory.clone(), None).await?;
        self.save_account(&SavedAccount {
            directory: directory.clone(),
            email: email.clone(),
            credentials,
        })?;
        tracing::info!(
            directory,
            account = account.id(),
            "an ACME account was created"
        );
        Ok(account)
    }

    fn save_account(&self, account: &SavedAccount) -> Result<(), OrderError> {
        self.store.save_account(account).map_err(|error| {
            let folder = self.store.path().display();
            let reason = format!("cannot save the account in {folder}: {error}");
            OrderError::new(Cause::Refused, reason)
        })
    }

    /// Keeps a new certificate, and has it loaded. `begun`: the orders, with this one as failed.
    fn install(&mut self, issued: &Issued, begun: Attempts) {
        let Issued { key, chain } = issued;
        let (names, now) = (&self.settings.names, SystemTime::now());
        let text = match store::certificate_file(&self.subject, names, key, chain, now) {
            Ok(text) => text,
            Err(unusable) => {
                let (Unusable::Never(reason) | Unusable::Now(reason)) = &unusable;
                let reason = one_line(reason);
                tracing::error!("the authority has sent an unusable certificate: {reason}");
                if matches!(unusable, Unusable::Never(_)) {
                    self.store.forget_order();
                }
                return self.log_next(); // Recorded as a failed order.
            }
        };
        if let Err(error) = self.store.save_certificate(&text) {
            return self.log_store_error(&error);
        }
        self.store.forget_order();
        let renewal = self.renewal().unwrap_or(now);
        if begun.obtained(renewal, now).is_none() {
            self.store.clear_attempts();
        } else {
            tracing::warn!("the new certificate is due for renewal already; is the clock right?");
        }
        (self.unreachable, self.not_before) = (0, None);
        tracing::info!(
            names = self.settings.names.join(" "),
            "a certificate was obtained"
        );
        self.reload.request_alone();
        self.log_next();
    }

    fn note_failure(&mut self, before: &Attempts, error: &OrderError, pause: Option<Duration>) {
        let now = SystemTime::now();
        let after = match error.cause {
            Cause::Unreachable => {
                let wait = schedule::unreachable_pause(self.unreachable, jitter(now));
                self.unreachable = self.unreachable.saturating_add(1);
                self.not_before = Some(now + wait);
                before.limited(pause, now, jitter(now))
            }
            Cause::Refused | Cause::RateLimited => {
                (self.unreachable, self.not_before) = (0, None);
                before.failed(error.cause, pause, now, jitter(now))
            }
        };
        self.save_attempts(&after);
        let next = utc(now + self.wait(now));
        tracing::error!(
            names = self.settings.names.join(" "),
            next,
            "no certificate could be obtained: {}; {}{}",
            one_line(&error.reason),
            match self.store.certificate() {
                Some(_) => "the certificate in use remains",
                None => "clients still get a temporary certificate, which they do not trust",
            },
            self.advice(now)
        );
    }

    fn save_attempts(&self, attempts: &Attempts) {
        if let Err(error) = self.store.save_attempts(attempts) {
            self.log_store_error(&error);
        }
    }

    fn log_store_error(&self, error: &io::Error) {
        let folder = self.store.path().display();
        tracing::error!("cannot write to {folder}: {}", failure::error_text(error));
    }
}

/// The text of an authority for the log: one line of limited length.
fn one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.chars().take(REASON_CHARS_MAX).map(shown).collect();
    if text.chars().nth(REASON_CHARS_MAX).is_some() {
        line.push_str(" [...]");
    }
    line
}

fn until(time: SystemTime, now: SystemTime) -> Duration {
    time.duration_since(now).unwrap_or_default()
}

/// A number from 0 to 1 that differs between servers.
fn jitter(now: SystemTime) -> f64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    f64::from(since.subsec_micros() % 1000) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_in_the_log_are_short_lines() {
        assert_eq!(one_line("a\nb\x1b[1m"), "a b [1m");
        let long = one_line(&"é".repeat(5000));
        assert_eq!(long.chars().count(), REASON_CHARS_MAX + 6);
        assert_eq!(one_line(&"é".repeat(1000)), "é".repeat(1000));
    }
}
