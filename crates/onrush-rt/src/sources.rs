//! The wakers of all streams and listeners that futures of one worker wait for.
//!
//! Does not depend on workers or on what the futures do.

use crate::driver::{Driver, Event, ListenerId, Socket};
use crate::sys::prefetch;
use crate::wakers::wake;
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::task::Waker;

/// Tokens and timer payloads with this bit belong to the runtime's own futures; those without it
/// belong to the event handler.
pub(crate) const RUNTIME: u64 = 1 << 63;

/// Cache lines of the memory that a reader has named: the frames of a few function calls.
const READER_LINES: usize = 6;

#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) reader: Option<Waker>,
    /// The memory that the reader uses first when it continues, if it has named any. It is
    /// prefetched when the reader is woken, because it may have left the cache.
    pub(crate) reader_memory: Option<NonZeroUsize>,
    pub(crate) writer: Option<Waker>,
}

#[derive(Debug, Default)]
pub(crate) struct Accepting {
    pub(crate) queue: VecDeque<io::Result<Socket>>,
    pub(crate) waker: Option<Waker>,
    /// Accepting is stopped at the driver because enough connections wait.
    pub(crate) held: bool,
}

/// At this many waiting connections, a listener stops accepting. Connections that are already being
/// accepted are still queued; on io_uring these may be all that the kernel's queue held then.
/// Others wait in the kernel's queue.
pub(crate) const ACCEPTED_AHEAD_MAX: usize = 256;

/// The wakers of all streams and listeners that futures of one worker wait for.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) streams: RefCell<Slab<Source>>,
    pub(crate) listeners: RefCell<Vec<(ListenerId, Accepting)>>,
}

impl Sources {
    /// Handles an event that a future waits for; returns events that belong to the event handler.
    #[inline]
    pub(crate) fn route(&self, event: Event, driver: &RefCell<Driver>) -> Option<Event> {
        let Some(token) = event.token() else {
            return self.accepted(event, driver);
        };
        if token & RUNTIME == 0 {
            return Some(event);
        }
        let waker = {
            let mut streams = self.streams.borrow_mut();
            let source = streams.get_mut((token & !RUNTIME) as usize)?;
            match event {
                Event::Writable { .. } => source.writer.take(),
                _ => {
                    if let Some(memory) = source.reader_memory {
                        prefetch(memory.get(), READER_LINES);
                    }
                    source.reader.take()
                }
            }
        };
        if let Some(waker) = waker {
            wake(waker);
        }
        None
    }

    fn accepted(&self, event: Event, driver: &RefCell<Driver>) -> Option<Event> {
        let (listener, result) = match event {
            Event::Accepted { listener, socket } => (listener, Ok(socket)),
            Event::AcceptPaused { listener, error } => (listener, Err(error)),
            other => return Some(other),
        };
        let mut listeners = self.listeners.borrow_mut();
        let Some((_, accepting)) = listeners.iter_mut().find(|(id, _)| *id == listener) else {
            return Some(match result {
                Ok(socket) => Event::Accepted { listener, socket },
                Err(error) => Event::AcceptPaused { listener, error },
            });
        };
        accepting.queue.push_back(result);
        if accepting.queue.len() >= ACCEPTED_AHEAD_MAX && !accepting.held {
            accepting.held = true;
            driver.borrow_mut().hold_accepting(listener);
        }
        let waker = accepting.waker.take();
        drop(listeners);
        if let Some(waker) = waker {
            wake(waker);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::ACCEPTED_AHEAD_MAX;
    use crate::driver::sim::{Behaviour, Net};
    use crate::net::Listener;
    use crate::worker::Worker;

    #[test]
    fn of_many_connections_that_nobody_takes_few_are_accepted() {
        let net = Net::new(1, Behaviour::default());
        let mut worker = Worker::simulated(net.clone(), 0).unwrap();
        let (socket, address) = net.listen();
        let mut listener = Listener::new(worker.context(), socket).unwrap();
        for _ in 0..3 {
            let clients: Vec<_> = (0..1_000).map(|_| address.connect().unwrap()).collect();
            for _ in 0..20 {
                worker.poll(&(), false).unwrap();
            }
            let waiting = {
                let listeners = worker.context().sources().listeners.borrow();
                listeners[0].1.queue.len()
            };
            assert_eq!(waiting, ACCEPTED_AHEAD_MAX);
            for client in clients {
                let stream = worker.block_on(Box::pin(listener.accept())).unwrap();
                assert!(stream.is_ok());
                drop(client);
            }
        }
    }
}
