//! Idle connections between two processes: a server that drains passes them on, and another one
//! adopts them. How they get from one process to the other is the caller's choice, such as
//! `SCM_RIGHTS` (unix(7)).

use super::control::{Control, RUNNING};
use crate::engine::{ConnectionFacts, EstablishedConn, Outbox, Transfer};
use onrush_rt::net::established_stream;
use onrush_rt::worker::monotonic_ms;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The connections that a draining server passes on ([`Handle::pass_on`](crate::Handle::pass_on)).
/// Dropping this ends it: all that were not passed on drain.
#[derive(Debug)]
pub struct Passing {
    control: Arc<Control>,
    outbox: Arc<Outbox>,
}

impl Passing {
    /// Begins to drain.
    pub(super) fn begin(control: &Arc<Control>) -> Passing {
        let passing = Passing {
            control: control.clone(),
            outbox: Arc::default(),
        };
        control.pass_on(passing.outbox.clone());
        passing
    }

    /// The next connection that is idle. Blocks the calling thread until there is one, for up to
    /// `limit`. `None`: none became idle in that time. A later call may return one.
    pub fn next(&self, limit: Duration) -> Option<PassedConnection> {
        let connection = self.outbox.take(limit)?;
        Some(PassedConnection {
            control: self.control.clone(),
            connection: Some(connection),
        })
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        for connection in self.outbox.close() {
            self.control.take_back(connection);
        }
        self.control.wake_workers();
    }
}

/// A connection that has stopped receiving, and has neither received a byte of a request nor a
/// response to send. Dropping it gives it back to the server, which drains it.
#[derive(Debug)]
pub struct PassedConnection {
    control: Arc<Control>,
    /// `None` when it was passed on.
    connection: Option<Box<EstablishedConn>>,
}

impl PassedConnection {
    /// The socket, for the other process. `None` never occurs on a real network.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref()?.socket()
    }

    /// What the other process has to know.
    pub fn facts(&self) -> Option<ConnectionFacts> {
        Some(self.connection.as_ref()?.facts())
    }

    /// The other process has the connection. Closes the descriptor of this process.
    pub fn passed(mut self) {
        if let Some(connection) = self.connection.take() {
            let from = connection.from();
            drop(connection);
            self.control.has_left(from);
        }
    }
}

impl Drop for PassedConnection {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.control.take_back(connection);
        }
    }
}

impl Control {
    /// A connection was passed on, and its descriptor is closed.
    fn has_left(&self, from: usize) {
        let settings = self.engine_settings();
        settings.release();
        settings.worker_set.release_and_wake(from);
    }

    /// Gives a connection back to its worker. If that has ended, the connection is closed.
    fn take_back(&self, mut connection: Box<EstablishedConn>) {
        connection.keep();
        let from = connection.from();
        let settings = self.engine_settings();
        let transfer = Transfer::Established(connection);
        if let Err(connection) = settings.worker_set.send(from, transfer) {
            drop(connection);
            settings.release();
        }
    }

    /// See [`Handle::take_over`](crate::Handle::take_over).
    pub(super) fn take_over(&self, socket: OwnedFd, facts: ConnectionFacts) -> bool {
        let (settings, running) = (self.engine_settings(), self.settings());
        let Ok(socket) = established_stream(socket) else {
            return false;
        };
        let is_expected = match settings.proxy_protocol {
            true => running.trusted_proxies.trusts(socket.peer()),
            false => facts.client.is_none(),
        };
        let is_served = self.state() == RUNNING && is_expected;
        if !is_served || !settings.reserve(running.connections_max) {
            return false;
        }
        let to = settings.worker_set.place_adopted(monotonic_ms());
        let connection = Box::new(EstablishedConn::adopted(socket, facts, to));
        let sent = settings.worker_set.send(to, Transfer::Adopted(connection));
        if sent.is_err() {
            settings.release();
        }
        sent.is_ok()
    }
}
