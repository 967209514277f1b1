//! The log of storage errors. Each error that an operator has to act on gets a line with the key
//! (percent-encoded, as in the access log) and the cause. Each kind of error has at most
//! [`LINES_PER_S`] lines per second, so that one kind cannot hide another.

use crate::files::path;
use onrush_store::{Key, StoreError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of lines per second for one kind of error. A full disk fails every upload,
/// and each line is a system call.
const LINES_PER_S: u32 = 10;

/// Writes storage errors to the log. All workers share one. It is used on error paths only.
#[derive(Debug, Default)]
pub(in crate::files) struct StorageLog {
    full: Limiter,
    read_only: Limiter,
    denied: Limiter,
    failed: Limiter,
}

/// Limits the lines of one kind of error.
#[derive(Debug, Default)]
struct Limiter(Mutex<Window>);

/// The second in which lines are counted.
#[derive(Debug, Default)]
struct Window {
    start: Option<Instant>,
    lines: u32,
    /// Errors since the last line that were not logged.
    suppressed: u64,
}

impl StorageLog {
    /// Logs `error` at level `warn` if an operator has to act on it: the store is full, is
    /// read-only, denies access, or fails. `key` is `None` for the top folder. An error over the
    /// limit is only counted; the next line of its kind contains the count.
    pub(in crate::files) fn record(&self, error: StoreError, key: Option<&Key>) {
        let Some(cause) = error.cause() else {
            return;
        };
        let limiter = match error {
            StoreError::Full(_) => &self.full,
            StoreError::ReadOnly => &self.read_only,
            StoreError::PermissionDenied(_) => &self.denied,
            _ => &self.failed,
        };
        let Some(suppressed) = limiter.admit(Instant::now()) else {
            return;
        };
        let mut shown = String::new();
        path::encode(key.map(Key::as_bytes).unwrap_or_default(), &mut shown);
        tracing::warn!(
            key = shown,
            %cause,
            errno = cause.errno(),
            suppressed = (suppressed > 0).then_some(suppressed),
            "{error}"
        );
    }
}

impl Limiter {
    /// Whether a line may be written at `now`. `Some(n)`: yes, and `n` errors were not logged since
    /// the last line.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |start| now.saturating_duration_since(start) >= Duration::from_secs(1);
        if window.start.is_none_or(is_over) {
            window.start = Some(now);
            window.lines = 0;
        }
        if window.lines == LINES_PER_S {
            window.suppressed += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_are_counted() {
        let log = Limiter::default();
        let start = Instant::now();
        for _ in 0..LINES_PER_S {
            assert_eq!(log.admit(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(log.admit(start + Duration::from_millis(999)), None);
        }
        assert_eq!(log.admit(start + Duration::from_secs(1)), Some(7));
        assert_eq!(log.admit(start + Duration::from_secs(1)), Some(0));
    }
}
