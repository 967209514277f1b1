//! Listeners of the io_uring driver: one multishot accept each, and direct system calls for
//! what is left when a listener closes.
//!
//! Does not depend on how streams receive.
#![allow(unsafe_code)]

use super::{COMPLETIONS, Kind, Uring};
use crate::driver::{ACCEPT_BATCH, ACCEPT_PAUSE, Event, ListenSocket, ListenerId, Socket};
use crate::driver::{direct, pauses_over};
use io_uring::cqueue;
use rustix::fd::{FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// How many of `queued` connections an iteration reports: a batch, and more of a long queue,
/// because each connection in it holds a descriptor.
pub(super) fn accepted_max(queued: usize) -> usize {
    (ACCEPT_BATCH as usize).max(queued / 16)
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: Option<OwnedFd>,
    /// While accepting is paused: when to try again.
    paused_until: Option<Instant>,
    /// Accepting is stopped until `accept_again`.
    pub(super) held: bool,
    /// The accept is queued or in the ring; a cancelled one until its last completion.
    pub(super) armed: bool,
    /// To be closed when its queue is empty.
    pub(super) closing: bool,
}

impl Uring {
    /// Resumes listeners whose pause is over; returns the timeout shortened to the next such end.
    pub(super) fn resume_listeners(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let pauses = self.listeners.iter().map(|l| l.paused_until);
        let (over, timeout) = pauses_over(pauses, timeout);
        for index in over {
            self.resume_listener(index);
        }
        timeout
    }

    fn resume_listener(&mut self, index: usize) {
        self.listeners[index].paused_until = None;
        self.queue_accept(index as u32);
    }

    /// Queues an accept, if the listener should accept and has none.
    fn queue_accept(&mut self, index: u32) {
        let entry = &mut self.listeners[index as usize];
        if !entry.closing && !entry.held && !std::mem::replace(&mut entry.armed, true) {
            self.queue_submission(Kind::Accept, index, 0);
        }
    }

    pub(in crate::driver) fn hold_accepting(&mut self, listener: ListenerId) {
        let Some(entry) = self.listeners.get_mut(listener.0 as usize) else {
            return;
        };
        if !std::mem::replace(&mut entry.held, true) && entry.armed && !entry.closing {
            self.queue_submission(Kind::HoldAccept, listener.0, 0);
        }
    }

    pub(in crate::driver) fn accept_again(&mut self, listener: ListenerId) {
        let Some(entry) = self.listeners.get_mut(listener.0 as usize) else {
            return;
        };
        // If the accept is still armed, it is about to be cancelled; its last completion queues it
        // again.
        if std::mem::take(&mut entry.held) && entry.paused_until.is_none() {
            self.queue_accept(listener.0);
        }
    }

    pub(in crate::driver) fn listen(&mut self, socket: ListenSocket) -> io::Result<ListenerId> {
        let ListenSocket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let index = self.listeners.len() as u32;
        self.listeners.push(Listener {
            socket: Some(socket),
            paused_until: None,
            held: false,
            armed: false,
            closing: false,
        });
        self.queue_accept(index);
        Ok(ListenerId(index))
    }

    pub(in crate::driver) fn unlisten(&mut self, listener: ListenerId) {
        let Some(entry) = self.listeners.get_mut(listener.0 as usize) else {
            return;
        };
        entry.paused_until = None;
        if !std::mem::replace(&mut entry.closing, true) {
            // First cancel the accept in the ring, in the next `poll_events`.
            self.queue_submission(Kind::Unlisten, listener.0, 0);
        }
    }

    pub(in crate::driver) fn is_listening(&self) -> bool {
        !self.accepted.is_empty() || self.listeners.iter().any(|l| l.socket.is_some())
    }

    /// A descriptor is free again: listeners that were paused may accept.
    pub(super) fn descriptor_freed(&mut self) {
        for index in 0..self.listeners.len() {
            if self.listeners[index].paused_until.is_some() {
                self.resume_listener(index);
            }
        }
    }

    /// Accepts the connections queued at closing listeners: closing at once would reset them.
    pub(super) fn accept_rest(&mut self) -> Option<Event> {
        while let Some(&index) = self.closing.last() {
            if self.taken >= COMPLETIONS {
                return None;
            }
            self.taken += 1;
            let entry = &mut self.listeners[index as usize];
            let accepted = entry.socket.as_ref().map(|socket| {
                loop {
                    match direct::accept(socket) {
                        Err(error) if direct::may_accept_next(error) => {}
                        result => return result,
                    }
                }
            });
            if let Some(Ok(socket)) = accepted {
                return Some(Event::Accepted {
                    listener: ListenerId(index),
                    socket: Socket::Os(socket),
                });
            }
            entry.socket = None;
            self.closing.pop();
        }
        None
    }

    /// The accepted connection that has waited longest, until the limit of this iteration.
    pub(super) fn next_accepted(&mut self) -> Option<Event> {
        self.accepted_left = self.accepted_left.checked_sub(1)?;
        let (listener, socket) = self.accepted.pop_front()?;
        Some(Event::Accepted {
            listener,
            socket: Socket::Os(socket),
        })
    }

    /// Queues an accepted connection for [`Uring::next_accepted`]. Returns an event only for a
    /// failure.
    pub(super) fn on_accept(&mut self, index: u32, result: i32, flags: u32) -> Option<Event> {
        let listener = ListenerId(index);
        if !cqueue::more(flags) {
            self.listeners[index as usize].armed = false;
        }
        if result >= 0 {
            // SAFETY: the kernel has just created this descriptor; nothing else owns it.
            let socket = unsafe { OwnedFd::from_raw_fd(result) };
            if !cqueue::more(flags) {
                self.queue_accept(index);
            }
            // Also if accepting has stopped meanwhile: the connection came before.
            self.accepted.push_back((listener, socket));
            return None;
        }
        if cqueue::more(flags) || self.listeners[index as usize].closing {
            return None;
        }
        let error = Errno::from_raw_os_error(-result);
        if direct::may_accept_next(error) || matches!(error, Errno::AGAIN | Errno::CANCELED) {
            self.queue_accept(index);
            return None;
        }
        let entry = &mut self.listeners[index as usize];
        entry.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        let error = error.into();
        Some(Event::AcceptPaused { listener, error })
    }
}
