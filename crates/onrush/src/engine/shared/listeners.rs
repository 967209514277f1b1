//! The listening sockets of a worker.

use onrush_rt::driver::{ListenSocket, ListenerId, Socket};
use onrush_rt::worker::WorkerContext;
use std::cell::RefCell;
use std::io;

/// A new connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) socket: Socket,
    /// It begins with a TLS handshake.
    pub(crate) tls: bool,
}

/// Those of one worker.
pub(in crate::engine) struct Listeners {
    context: WorkerContext,
    /// The listeners and whether their connections use TLS. Closed ones stay, because the
    /// connections in their queues are still accepted.
    open: RefCell<Vec<(ListenerId, bool)>>,
}

impl Listeners {
    pub(in crate::engine) fn new(context: &WorkerContext) -> Listeners {
        Listeners {
            context: context.clone(),
            open: RefCell::default(),
        }
    }

    /// Starts to accept from a socket. `uses_tls` tells whether the listener with this index does.
    pub(in crate::engine) fn listen(
        &self,
        socket: ListenSocket,
        uses_tls: impl Fn(usize) -> bool,
    ) -> io::Result<()> {
        let listener = self.context.driver().listen(socket)?;
        let mut open = self.open.borrow_mut();
        let tls = uses_tls(open.len());
        open.push((listener, tls));
        Ok(())
    }

    /// A connection that `listener` has accepted.
    pub(in crate::engine) fn incoming(&self, listener: ListenerId, socket: Socket) -> Incoming {
        let open = self.open.borrow();
        let found = open.iter().find(|(other, _)| *other == listener);
        let tls = found.is_some_and(|&(_, tls)| tls);
        Incoming { socket, tls }
    }

    /// Closes the listeners, after all connections in their queues have been accepted.
    pub(in crate::engine) fn close(&self) {
        for &(listener, _) in self.open.borrow().iter() {
            self.context.driver().unlisten(listener);
        }
    }
}
