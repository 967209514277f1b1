//! An epoll instance whose events carry descriptors.

use crate::net::check;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// The most events that one wait returns.
const EVENTS: usize = 512;

/// An epoll instance, and the events of the last wait.
pub struct Epoll {
    descriptor: OwnedFd,
    events: Box<[libc::epoll_event; EVENTS]>,
}

impl Epoll {
    /// An instance without sockets.
    ///
    /// # Errors
    /// `epoll_create1` fails.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: the call creates a descriptor, which has no other owner yet.
        let descriptor =
            unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let none = libc::epoll_event { events: 0, u64: 0 };
        let events = Box::new([none; EVENTS]);
        Ok(Epoll { descriptor, events })
    }

    /// Watches `socket` for `events` until it is closed.
    ///
    /// # Errors
    /// `epoll_ctl` fails.
    #[inline]
    pub fn watch(&self, socket: i32, events: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: socket as u64,
        };
        let epoll = self.descriptor.as_raw_fd();
        // SAFETY: the kernel copies `event`, which outlives the call.
        let result = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, socket, &raw mut event) };
        check(result).map(drop)
    }

    /// Waits until sockets are ready. Returns the number of events; 0 after a signal.
    ///
    /// # Errors
    /// `epoll_wait` fails for another reason.
    #[inline]
    pub fn wait(&mut self) -> io::Result<usize> {
        let (epoll, events) = (self.descriptor.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: the kernel writes at most `EVENTS` events to `events`, which has room for them.
        let count = unsafe { libc::epoll_wait(epoll, events, EVENTS as libc::c_int, -1) };
        match check(count) {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The descriptor of an event of the last wait.
    #[inline]
    #[must_use]
    pub fn ready(&self, event: usize) -> i32 {
        self.events[event].u64 as i32
    }
}
