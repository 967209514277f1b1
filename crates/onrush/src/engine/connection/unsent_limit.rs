//! The limit on unsent bytes that the kernel holds for a connection (`TCP_NOTSENT_LOWAT`, tcp(7)).
//!
//! Without a limit, a client that requests a large file and reads nothing makes the worker send
//! 3 MB of it. With a small one, a client that reads is sent many small pieces, and each has the
//! price of a wake-up and a call. So the limit grows with what the client has taken on this
//! connection, in all responses: it rises each time that eight times the limit was taken. A client
//! that stops reading therefore holds the first limit, or less than it has taken. The limit falls
//! to the first one when the client needs [`STALL_MS`] to take anything: then the limit is more
//! than it takes in that time.

use crate::connections::ConnId;
use std::cell::RefCell;

/// The limit of a new connection, in bytes.
pub(crate) const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// The number of limits: [`UNSENT_BYTES_MAX`], and each further one four times the one before it.
const LEVELS: u8 = 3;

/// A wait for the client of this duration in ms ends its present level.
const STALL_MS: u64 = 1_000;

/// Accepted bytes are counted in units of this part of the limit. A send of less does not count: it
/// needs no higher limit.
const UNITS_PER_LIMIT: u32 = 8;

/// The units that are accepted at a level before the next one: eight times the limit.
const UNITS_PER_LEVEL: u8 = 8 * UNITS_PER_LIMIT as u8;

/// The limits of the connections of one worker, by their index. An idle connection keeps its limit,
/// and a [`Conn`](crate::engine::connection::Conn) has no room for one more byte.
#[derive(Debug, Default)]
pub(in crate::engine) struct UnsentLimits(RefCell<Vec<UnsentLimit>>);

impl UnsentLimits {
    /// The limit of a connection.
    pub(in crate::engine) fn get(&self, id: ConnId) -> UnsentLimit {
        let limits = self.0.borrow();
        limits.get(id.index as usize).copied().unwrap_or_default()
    }

    /// Sets the limit of a connection: the first one of a new connection.
    pub(in crate::engine) fn set(&self, id: ConnId, limit: UnsentLimit) {
        let (mut limits, index) = (self.0.borrow_mut(), id.index as usize);
        if limits.len() <= index {
            limits.resize(index + 1, UnsentLimit::default());
        }
        limits[index] = limit;
    }

    /// As [`UnsentLimit::accepted`], for the limit of a connection.
    pub(in crate::engine) fn accepted(
        &self,
        id: ConnId,
        bytes: usize,
        waited_ms: u64,
    ) -> Option<u32> {
        let mut limits = self.0.borrow_mut();
        limits
            .get_mut(id.index as usize)?
            .accepted(bytes, waited_ms)
    }
}

/// The present limit of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsentLimit {
    /// The level, times [`UNITS_PER_LEVEL`], and the units that were accepted at it.
    progress: u8,
}

impl UnsentLimit {
    fn level(self) -> u8 {
        self.progress / UNITS_PER_LEVEL
    }

    fn bytes(self) -> u32 {
        UNSENT_BYTES_MAX << (2 * self.level())
    }

    /// Counts bytes that the kernel has accepted after a wait of `waited_ms` for the client.
    /// Returns the limit in bytes if it changes.
    fn accepted(&mut self, bytes: usize, waited_ms: u64) -> Option<u32> {
        let level = self.level();
        if waited_ms >= STALL_MS {
            self.progress = 0;
            return (level > 0).then_some(UNSENT_BYTES_MAX);
        }
        if level + 1 == LEVELS {
            return None;
        }
        let units = bytes / (self.bytes() / UNITS_PER_LIMIT) as usize;
        let next = (level + 1) * UNITS_PER_LEVEL;
        let left = usize::from(next - self.progress);
        self.progress += units.min(left) as u8;
        (self.progress == next).then(|| self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    /// Takes `bytes` without a wait, in pieces of 64 KiB; returns the changes of the limit.
    fn take(limit: &mut UnsentLimit, bytes: usize) -> Vec<u32> {
        let pieces = 0..bytes / (64 * KIB);
        pieces.filter_map(|_| limit.accepted(64 * KIB, 0)).collect()
    }

    #[test]
    fn the_limit_grows_with_what_was_taken() {
        let mut limit = UnsentLimit::default();
        assert!(take(&mut limit, 960 * KIB).is_empty());
        assert_eq!(take(&mut limit, 64 * KIB), [512 << 10]);
        assert!(take(&mut limit, 4032 * KIB).is_empty());
        assert_eq!(take(&mut limit, 64 * KIB), [2 << 20]);
        assert!(take(&mut limit, 1 << 30).is_empty(), "the last level");
    }

    /// When the limit rises, the client has taken what was accepted, except for the limit before.
    #[test]
    fn no_client_holds_more_than_it_has_taken() {
        let (mut limit, mut accepted) = (UnsentLimit::default(), 0);
        for _ in 0..100 {
            let before = limit.bytes();
            accepted += 64 * KIB as u32;
            if let Some(limit) = limit.accepted(64 * KIB, 0) {
                assert!(limit <= accepted - before, "{limit} after {accepted}");
            }
        }
    }

    #[test]
    fn a_stall_ends_what_was_gained() {
        let mut limit = UnsentLimit::default();
        take(&mut limit, 8 << 20);
        assert_eq!(limit.accepted(64 * KIB, STALL_MS - 1), None);
        assert_eq!(limit.accepted(1 << 20, STALL_MS), Some(UNSENT_BYTES_MAX));
        assert_eq!(limit, UnsentLimit::default());
        assert_eq!(limit.accepted(1 << 20, STALL_MS), None, "the first level");
        take(&mut limit, 960 * KIB);
        assert_eq!(limit.accepted(1, STALL_MS), None);
        assert!(take(&mut limit, 960 * KIB).is_empty(), "counts anew");
        assert_eq!(take(&mut limit, 64 * KIB), [512 << 10]);
    }

    #[test]
    fn one_large_send_is_one_step() {
        let mut limit = UnsentLimit::default();
        assert_eq!(limit.accepted(usize::MAX, 0), Some(512 << 10));
        assert_eq!(limit.accepted(2 << 20, 0), None);
        assert_eq!(limit.accepted(2 << 20, 0), Some(2 << 20));
    }

    #[test]
    fn small_sends_do_not_count() {
        let mut limit = UnsentLimit::default();
        assert!((0..100_000).all(|_| limit.accepted(16 * KIB - 1, 0).is_none()));
    }
}
