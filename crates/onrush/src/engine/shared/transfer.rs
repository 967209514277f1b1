//! Connections on their way to another worker, or to another process.

use crate::engine::connection::state::Expects;
use crate::engine::connection::tls_connection::MovedTls;
use crate::engine::connection::unsent_limit::UnsentLimit;
use crate::engine::shared::listeners::Incoming;
use onrush_proto::connection::Connection as Machine;
use onrush_rt::driver::Socket;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// A connection that one worker transfers to another.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// A new connection that is assigned to the other worker.
    Accepted(Incoming),
    /// An established connection, between two requests.
    Established(Box<EstablishedConn>),
    /// An idle connection of another process.
    Adopted(Box<EstablishedConn>),
    /// A connection for which so many workers had no place and no idle connection to close. It is
    /// counted at the worker that it goes to, but not against the connection limit.
    OverLimit(Incoming, usize),
}

/// The state of an established connection during a transfer.
#[derive(Debug)]
pub(crate) struct EstablishedConn {
    pub(in crate::engine) socket: Socket,
    /// `None` on a plain connection.
    pub(in crate::engine) tls: Option<MovedTls>,
    /// The client that the header of the PROXY protocol has named.
    pub(in crate::engine) client: Option<SocketAddr>,
    pub(in crate::engine) machine: Machine,
    /// Received and not processed: a partial head, pipelined requests.
    pub(in crate::engine) input: Vec<u8>,
    /// Valid on each worker, because all use the same clock.
    pub(in crate::engine) deadline_ms: u64,
    pub(in crate::engine) expects: Expects,
    pub(in crate::engine) unsent_limit: UnsentLimit,
    /// The index of the worker that sends it.
    pub(in crate::engine) from: usize,
    /// The target worker had no memory for it and sends it back.
    pub(in crate::engine) returned: bool,
    /// The other process has not taken it, so it is not passed on.
    pub(in crate::engine) stays: bool,
}

/// What a process says about a connection that it passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// The client that the header of the PROXY protocol has named.
    pub client: Option<SocketAddr>,
    /// When the connection ends if no request arrives, in milliseconds of `CLOCK_MONOTONIC`, which
    /// all processes of a machine share. [`u64::MAX`]: never.
    pub deadline_ms: u64,
}

impl EstablishedConn {
    /// An idle connection of another process, for the worker `to`.
    pub(crate) fn adopted(socket: Socket, facts: ConnectionFacts, to: usize) -> EstablishedConn {
        EstablishedConn {
            socket,
            tls: None,
            client: facts.client,
            machine: Machine::new(),
            input: Vec::new(),
            deadline_ms: facts.deadline_ms,
            expects: Expects::Request,
            unsent_limit: UnsentLimit::default(),
            from: to,
            returned: false,
            stays: false,
        }
    }

    /// Whether another process needs only the socket and [`EstablishedConn::facts`].
    pub(in crate::engine) fn is_idle(&self) -> bool {
        let expects_request = matches!(self.expects, Expects::Request | Expects::Head);
        let is_plain = self.tls.is_none() && matches!(self.socket, Socket::Os(_));
        expects_request && is_plain && self.input.is_empty() && !self.stays
    }

    pub(crate) fn facts(&self) -> ConnectionFacts {
        ConnectionFacts {
            client: self.client,
            deadline_ms: self.deadline_ms,
        }
    }

    /// The socket; `None` if it is simulated.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.socket {
            Socket::Os(socket) => Some(socket.as_fd()),
            Socket::Sim(_) => None,
        }
    }

    /// The worker that it comes from.
    pub(crate) fn from(&self) -> usize {
        self.from
    }

    /// The other process has not taken it.
    pub(crate) fn keep(&mut self) {
        self.stays = true;
    }

    #[cfg(test)]
    pub(super) fn for_test() -> EstablishedConn {
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let facts = ConnectionFacts {
            client: None,
            deadline_ms: u64::MAX,
        };
        EstablishedConn::adopted(Socket::Os(socket.into()), facts, 0)
    }
}
