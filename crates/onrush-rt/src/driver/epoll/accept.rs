//! Listeners of the epoll driver: level-triggered, accepted from until their queue is empty.
//!
//! Does not depend on how streams receive.

use super::{Epoll, LISTENER};
use crate::driver::{ACCEPT_BATCH, ACCEPT_PAUSE, Event, ListenSocket, ListenerId, Socket};
use crate::driver::{direct, pauses_over};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Listener {
    socket: Option<OwnedFd>,
    /// While accepting is paused: when to try again.
    pub(super) paused_until: Option<Instant>,
    /// Accepting is stopped until `accept_again`.
    held: bool,
    /// To be closed when its queue is empty.
    closing: bool,
}

impl Epoll {
    pub(super) fn accept(&mut self) -> Option<Event> {
        while let Some((index, left)) = self.accepting.last_mut() {
            let listener = ListenerId(*index);
            let entry = &mut self.listeners[*index as usize];
            *left -= 1;
            let exhausted = *left == 0;
            let closing = entry.closing;
            let Some(socket) = entry
                .socket
                .as_ref()
                .filter(|_| entry.paused_until.is_none() && (!entry.held || closing))
            else {
                self.accepting.pop();
                continue;
            };
            match direct::accept(socket) {
                Ok(socket) => {
                    if exhausted {
                        self.accepting.pop();
                    }
                    return Some(Event::Accepted {
                        listener,
                        socket: Socket::Os(socket),
                    });
                }
                Err(Errno::AGAIN) => {
                    self.accepting.pop();
                    if closing {
                        entry.socket = None;
                    }
                }
                Err(error) if direct::may_accept_next(error) => {
                    if exhausted {
                        self.accepting.pop();
                    }
                }
                Err(_) if closing => {
                    self.accepting.pop();
                    entry.socket = None;
                }
                Err(error) => {
                    self.accepting.pop();
                    return Some(self.pause_listener(listener, error.into()));
                }
            }
        }
        None
    }

    fn pause_listener(&mut self, listener: ListenerId, error: io::Error) -> Event {
        let entry = &mut self.listeners[listener.0 as usize];
        entry.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
        if let Some(socket) = &entry.socket {
            // Level-triggered: it would be reported again and again.
            let _ = epoll::delete(&self.epoll, socket);
        }
        Event::AcceptPaused { listener, error }
    }

    /// Resumes listeners whose pause is over; returns the timeout shortened to the next such end.
    pub(super) fn resume_listeners(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let pauses = self.listeners.iter().map(|l| l.paused_until);
        let (over, timeout) = pauses_over(pauses, timeout);
        for index in over {
            self.resume_listener(index);
        }
        timeout
    }

    pub(super) fn resume_listener(&mut self, index: usize) {
        let entry = &mut self.listeners[index];
        entry.paused_until = None;
        if let Some(socket) = entry.socket.as_ref().filter(|_| !entry.held) {
            let data = EventData::new_u64(LISTENER | index as u64);
            if epoll::add(&self.epoll, socket, data, listener_flags()).is_err() {
                entry.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
    }

    pub(in crate::driver) fn listen(&mut self, socket: ListenSocket) -> io::Result<ListenerId> {
        let ListenSocket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let index = self.listeners.len();
        let data = EventData::new_u64(LISTENER | index as u64);
        epoll::add(&self.epoll, &socket, data, listener_flags())?;
        self.listeners.push(Listener {
            socket: Some(socket),
            paused_until: None,
            held: false,
            closing: false,
        });
        Ok(ListenerId(index as u32))
    }

    pub(in crate::driver) fn hold_accepting(&mut self, listener: ListenerId) {
        if let Some(entry) = self.listeners.get_mut(listener.0 as usize)
            && let Some(socket) = &entry.socket
            && !std::mem::replace(&mut entry.held, true)
        {
            let _ = epoll::delete(&self.epoll, socket); // A paused one is not registered.
        }
    }

    pub(in crate::driver) fn accept_again(&mut self, listener: ListenerId) {
        if let Some(entry) = self.listeners.get_mut(listener.0 as usize)
            && std::mem::take(&mut entry.held)
            && entry.paused_until.is_none()
            && !entry.closing
        {
            self.resume_listener(listener.0 as usize);
        }
    }

    pub(in crate::driver) fn unlisten(&mut self, listener: ListenerId) {
        if let Some(entry) = self.listeners.get_mut(listener.0 as usize) {
            if let Some(socket) = &entry.socket
                && !std::mem::replace(&mut entry.closing, true)
            {
                let _ = epoll::delete(&self.epoll, socket);
            }
            entry.paused_until = None;
        }
    }

    /// Queues closing listeners for accepting: closing them at once would reset the connections
    /// that the kernel has established already.
    pub(super) fn empty_closing(&mut self) {
        for (index, listener) in self.listeners.iter().enumerate() {
            let index = index as u32;
            let known = self.accepting.iter().any(|(other, _)| *other == index);
            if listener.closing && listener.socket.is_some() && !known {
                self.accepting.push((index, ACCEPT_BATCH));
            }
        }
    }

    /// Whether the next connection comes from a closing listener.
    pub(super) fn is_emptying(&self) -> bool {
        let next = self.accepting.last();
        next.is_some_and(|(index, _)| self.listeners[*index as usize].closing)
    }

    /// Whether a closing listener is not empty yet.
    pub(super) fn has_closing(&self) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|listener| listener.closing && listener.socket.is_some())
    }

    pub(in crate::driver) fn is_listening(&self) -> bool {
        self.listeners.iter().any(|l| l.socket.is_some())
    }
}

/// Several workers may watch one listener: wake one, not all.
fn listener_flags() -> EventFlags {
    EventFlags::IN | EventFlags::EXCLUSIVE
}
