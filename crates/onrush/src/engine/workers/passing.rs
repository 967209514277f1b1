//! Passes plain connections on to another process while the server drains: those that are idle, and
//! others as soon as they are.
//!
//! It is a migration whose target is `Target::Successor` instead of a worker: the driver stops
//! receiving, and its last completion is looked at, before the socket leaves. A connection with
//! received bytes or with a request in progress stays until the response was sent. A connection
//! that is to be passed on is served as usual meanwhile; all others drain.
//!
//! The sockets go into an `Outbox`, from which a thread that is no worker takes them, so no
//! worker waits for another process. Their places, under the connection limit and at their worker,
//! stay reserved until the thread says what became of them. A connection that the other process
//! does not take comes back through the inbox of its worker, and drains.
//!
//! TLS connections are not passed on: their keys and the state of rustls are in this process.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{Expects, Phase, Target};
use crate::engine::lifecycle::{Engine, count};
use crate::engine::shared::transfer::EstablishedConn;
use std::rc::Rc;

/// Whether a connection waits for a request of which nothing has arrived.
fn is_between_requests(conn: &Conn) -> bool {
    let expects_one = matches!(conn.state.expects(), Expects::Request | Expects::Head);
    let is_waiting = conn.state.is_ready() && expects_one && !conn.state.has_ended();
    is_waiting && conn.unprocessed_bytes() == 0
}

impl Engine {
    /// Whether connections are passed on.
    pub(in crate::engine) fn is_passing(&self) -> bool {
        self.outbox.borrow().is_some()
    }

    /// Passes a connection on, at once or when it is idle. `false`: it is one that drains.
    pub(in crate::engine) fn pass_on(self: &Rc<Self>, id: ConnId) -> bool {
        if !self.is_passing() {
            return false;
        }
        {
            let Some(mut conn) = self.conns.open(id) else {
                return true;
            };
            let stays = matches!(
                conn.state.phase(),
                Phase::Leaving | Phase::Lingering | Phase::Streams
            ) || conn.transport.is_tls()
                || conn.state.is_in_proxy_header()
                || conn.state.is_refused()
                || conn.state.has_ended();
            if stays {
                return false;
            }
            conn.state.plan_move(Target::Successor);
        }
        self.pass_on_if_idle(id);
        true
    }

    /// Passes a connection on now, if that is planned and it is idle.
    pub(in crate::engine) fn pass_on_if_idle(self: &Rc<Self>, id: ConnId) {
        let is_planned = |conn: &Conn| conn.state.leaving() == Some(Target::Successor);
        let conn = self.conns.open(id);
        if conn.is_some_and(|conn| is_planned(&conn) && is_between_requests(&conn)) {
            self.begin_migration(id);
        }
    }

    /// Gives a connection that has stopped receiving to the thread that passes it on. Goes on with
    /// it if bytes have arrived, or no more are passed on.
    pub(super) fn give_to_outbox(self: &Rc<Self>, connection: Box<EstablishedConn>) {
        let outbox = self.outbox.borrow().clone();
        let outbox = outbox.filter(|_| connection.is_idle());
        let given = match outbox {
            Some(outbox) => outbox.add(connection).inspect_err(|_| {
                // The worker has not noticed it yet.
                drop(self.outbox.take());
            }),
            None => Err(connection),
        };
        match given {
            Ok(()) => count(&self.counters.handed_over),
            Err(connection) => self.resume_connection(*connection),
        }
    }

    /// No more connections are passed on: those that were to be drain.
    pub(crate) fn stop_passing(&self) {
        drop(self.outbox.take());
        for id in self.conns.ids() {
            let is_planned = {
                let Some(mut conn) = self.conns.open(id) else {
                    continue;
                };
                let is_planned = conn.state.leaving() == Some(Target::Successor);
                // One that has begun to move comes back.
                let is_planned = is_planned && conn.state.phase() != Phase::Leaving;
                if is_planned {
                    conn.state.cancel_move();
                }
                is_planned
            };
            if is_planned {
                self.conns.drain(id);
            }
        }
    }
}
