//! Connections that come from other workers or go to them: new ones on their way to their place,
//! and live ones between two requests.
//!
//! A live one is first made quiet: the driver receives no more, and what had been received already
//! is kept. Then its socket, what was kept, the state of its protocol and its deadline travel, and
//! the other worker goes on as if it had been there all the time. Must not know why a connection
//! moves.

use super::connection::{Conn, Phase};
use super::deadline::DRAIN_IDLE_MS;
use super::{Engine, count};
use crate::host::ConnId;
use crate::metrics::CloseReason;
use crate::panic_guard;
use crate::worker_set::Assignment;
use onrush_proto::connection::Connection as Machine;
use onrush_rt::diagnose;
use onrush_rt::driver::Socket;
use std::rc::Rc;

/// What one worker passes to another.
#[derive(Debug)]
pub(crate) enum Transfer {
    /// A connection that was accepted for the other one.
    Accepted(Socket),
    /// A connection between two requests.
    Established(Box<EstablishedConn>),
    /// A connection for which so many workers had no place and no idle connection to close. It is
    /// counted at the worker that it goes to, but not against the connection limit.
    OverLimit(Socket, usize),
}

/// A connection on its way.
#[derive(Debug)]
pub(crate) struct EstablishedConn {
    socket: Socket,
    machine: Machine,
    /// Received and not used up: a partial head, pipelined requests.
    input: Vec<u8>,
    /// All workers have the same clock.
    deadline_ms: u64,
    in_head: bool,
    draining_body: bool,
    /// Who sends it.
    from: usize,
    /// Where it went had no memory for it.
    returned: bool,
}

impl Engine {
    /// Gives a new connection its place, here or with another worker.
    pub(super) fn place_connection(self: &Rc<Self>, socket: Socket) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let Assignment::Peer(to) = worker_set.place_connection(own, self.context.now_ms()) else {
            return self.open_connection(socket);
        };
        if let Err(Transfer::Accepted(socket)) =
            worker_set.transfer(own, to, Transfer::Accepted(socket))
        {
            self.open_connection(socket);
        }
    }

    /// Takes what other workers have passed.
    pub(super) fn receive_transfers(self: &Rc<Self>) {
        self.accept_transfers(self.settings.worker_set.take_inbox(self.context.index()));
    }

    /// Serves what was passed from elsewhere.
    pub(crate) fn accept_transfers(self: &Rc<Self>, transfers: Vec<Transfer>) {
        for transfer in transfers {
            // Each by itself: a panic while one is served must not lose the others.
            let served = panic_guard::catch(|| match transfer {
                Transfer::Accepted(socket) => self.open_connection(socket),
                Transfer::Established(live) => {
                    count(&self.counters.taken_over);
                    self.resume_connection(*live);
                }
                Transfer::OverLimit(socket, asked) => {
                    self.settings.worker_set.release(self.context.index());
                    self.admit(socket, asked);
                }
            });
            if served.is_none() {
                self.recover_from_panic(None);
            }
        }
    }

    /// Has a connection go to the worker `to`, now or as soon as its present request is answered.
    pub(crate) fn migrate_to(self: &Rc<Self>, id: ConnId, to: usize) {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else { return };
        if conn.over_limit || conn.ended || matches!(conn.phase, Phase::Leaving | Phase::Lingering)
        {
            return;
        }
        conn.leaving = u16::try_from(to).ok();
        if conn.phase == Phase::Ready {
            drop(conns);
            self.begin_migration(id);
        }
    }

    /// [`Engine::migrate_to`] for all connections.
    pub(crate) fn migrate_all_to(self: &Rc<Self>, to: usize) {
        let ids = self.conns.borrow().ids();
        for id in ids {
            self.migrate_to(id, to);
        }
    }

    /// Begins to move a connection that is between two requests.
    pub(super) fn begin_migration(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            self.set_phase(id, conn, Phase::Leaving);
            conn.paused = true;
            if !self.context.driver().pause(conn.stream) {
                return; // `Quiet` follows, perhaps behind some more input.
            }
        }
        self.finish_migration(id);
    }

    /// Sends a connection away that is quiet now.
    pub(super) fn finish_migration(self: &Rc<Self>, id: ConnId) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let Some(conn) = self.conns.borrow_mut().remove(id) else {
            return;
        };
        diagnose!(DEBUG, worker = own, connection = id.token(),
            to = conn.leaving.map_or(own, usize::from); "connection migrates to another worker");
        if let Some(timer) = conn.timer {
            self.context.unschedule(timer);
        }
        let detached = self.context.driver().detach(conn.stream);
        let Some((socket, to)) = detached.zip(conn.leaving) else {
            return self.record_close(CloseReason::Exhausted);
        };
        let mut input = Vec::new();
        for piece in conn.active.iter().flat_map(|active| &active.input) {
            input.extend_from_slice(piece);
        }
        let live = Box::new(EstablishedConn {
            socket,
            machine: conn.machine,
            input,
            deadline_ms: conn.deadline_ms,
            in_head: conn.in_head,
            draining_body: conn.draining_body,
            from: own,
            returned: false,
        });
        if self.draining.get() || worker_set.is_draining() {
            return self.resume_connection(*live);
        }
        if let Err(live) = self.send_transfer(usize::from(to), live) {
            self.resume_connection(*live); // That worker has left.
        }
    }

    /// Sends a connection to the worker `to`, or gives it back.
    fn send_transfer(
        &self,
        to: usize,
        live: Box<EstablishedConn>,
    ) -> Result<(), Box<EstablishedConn>> {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        worker_set.reserve(to);
        worker_set.release(own);
        match worker_set.transfer(own, to, Transfer::Established(live)) {
            Err(Transfer::Established(live)) => Err(live),
            _ => {
                count(&self.counters.handed_over);
                Ok(())
            }
        }
    }

    /// Goes on with a connection that was elsewhere.
    fn resume_connection(self: &Rc<Self>, mut live: EstablishedConn) {
        let block = match live.input.len() {
            0 => None,
            bytes => self.context.pool().take_exact(bytes),
        };
        let homeless = block.is_none() && !live.input.is_empty();
        if homeless && !live.returned && live.from != self.context.index() {
            live.returned = true;
            match self.send_transfer(live.from, Box::new(live)) {
                Ok(()) => return,
                Err(back) => live = *back,
            }
        }
        let Some(id) = self.attach(live.socket) else {
            return;
        };
        diagnose!(DEBUG, worker = self.context.index(), connection = id.token(), from = live.from,
            input_bytes = live.input.len(); "connection migrated from another worker");
        if homeless {
            // Its requests are lost, and must not be taken for answered.
            return self.abort(id, CloseReason::Exhausted);
        }
        let input = block.map(|mut block| {
            block.extend(&live.input);
            block.into_buf()
        });
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            conn.machine = live.machine;
            conn.in_head = live.in_head;
            conn.draining_body = live.draining_body;
            let mut deadline_ms = live.deadline_ms;
            if self.draining.get() {
                self.note_drain(id, live.input.len() as u64);
                if input.is_none() {
                    conn.in_head = false; // A head that begins now has its whole time.
                    let soon = self.context.now_ms() + u64::from(DRAIN_IDLE_MS);
                    deadline_ms = deadline_ms.min(soon);
                }
            }
            self.set_deadline(id, conn, deadline_ms);
            self.context.driver().receive(conn.stream);
        }
        if let Some(input) = input
            && panic_guard::catch(|| self.received(id, input)).is_none()
        {
            self.recover_from_panic(Some(id)); // Its input is lost in the middle.
        }
    }

    /// The peer ended its direction while the connection was made quiet: it stays, is answered what
    /// it had asked before, and ends.
    pub(super) fn cancel_migration(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            (conn.leaving, conn.ended) = (None, true);
        }
        self.resume_reading(id);
        let is_over = |conn: &mut Conn| conn.phase == Phase::Ready;
        let over = self.conns.borrow_mut().get(id).is_some_and(is_over);
        if over {
            self.close(id, CloseReason::Client);
        }
    }
}
