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
use crate::crew::Place;
use crate::host::ConnId;
use crate::metrics::Ending;
use crate::shield;
use onrush_proto::connection::Connection as Machine;
use onrush_rt::diagnose;
use onrush_rt::driver::Socket;
use std::rc::Rc;

/// What one worker passes to another.
#[derive(Debug)]
pub(crate) enum Passed {
    /// A connection that was accepted for the other one.
    Fresh(Socket),
    /// A connection between two requests.
    Live(Box<Live>),
}

/// A connection on its way.
#[derive(Debug)]
pub(crate) struct Live {
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
    pub(super) fn place(self: &Rc<Self>, socket: Socket) {
        let (crew, own) = (&self.settings.crew, self.local.index());
        let Place::At(to) = crew.place(own, self.local.now_ms()) else {
            return self.welcome(socket);
        };
        if let Err(Passed::Fresh(socket)) = crew.pass(own, to, Passed::Fresh(socket)) {
            self.welcome(socket);
        }
    }

    /// Takes what other workers have passed.
    pub(super) fn take_passed(self: &Rc<Self>) {
        self.arrived(self.settings.crew.take(self.local.index()));
    }

    /// Serves what was passed from elsewhere.
    pub(crate) fn arrived(self: &Rc<Self>, passed: Vec<Passed>) {
        for passed in passed {
            // Each by itself: a panic while one is served must not lose the others.
            let served = shield::run(|| match passed {
                Passed::Fresh(socket) => self.welcome(socket),
                Passed::Live(live) => {
                    count(&self.counters.taken_over);
                    self.adopt(*live);
                }
            });
            if served.is_none() {
                self.survive(None);
            }
        }
    }

    /// Has a connection go to the worker `to`, now or as soon as its present request is answered.
    pub(crate) fn hand_over_to(self: &Rc<Self>, id: ConnId, to: usize) {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else { return };
        if conn.crowd || conn.ended || matches!(conn.phase, Phase::Leaving | Phase::Lingering) {
            return;
        }
        conn.leaving = u16::try_from(to).ok();
        if conn.phase == Phase::Ready {
            drop(conns);
            self.make_quiet(id);
        }
    }

    /// [`Engine::hand_over_to`] for all connections.
    pub(crate) fn hand_all_over_to(self: &Rc<Self>, to: usize) {
        let ids = self.conns.borrow().ids();
        for id in ids {
            self.hand_over_to(id, to);
        }
    }

    /// Begins to move a connection that is between two requests.
    pub(super) fn make_quiet(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            self.set_phase(id, conn, Phase::Leaving);
            conn.paused = true;
            if !self.local.driver().pause(conn.stream) {
                return; // `Quiet` follows, perhaps behind some more input.
            }
        }
        self.send_away(id);
    }

    /// Sends a connection away that is quiet now.
    pub(super) fn send_away(self: &Rc<Self>, id: ConnId) {
        let (crew, own) = (&self.settings.crew, self.local.index());
        let Some(conn) = self.conns.borrow_mut().remove(id) else {
            return;
        };
        diagnose!(DEBUG, worker = own, connection = id.token(),
            to = conn.leaving.map_or(own, usize::from); "connection migrates to another worker");
        if let Some(timer) = conn.timer {
            self.local.unschedule(timer);
        }
        let detached = self.local.driver().detach(conn.stream);
        let Some((socket, to)) = detached.zip(conn.leaving) else {
            return self.gone(Ending::Exhausted);
        };
        let mut input = Vec::new();
        for piece in conn.active.iter().flat_map(|active| &active.input) {
            input.extend_from_slice(piece);
        }
        let live = Box::new(Live {
            socket,
            machine: conn.machine,
            input,
            deadline_ms: conn.deadline_ms,
            in_head: conn.in_head,
            draining_body: conn.draining_body,
            from: own,
            returned: false,
        });
        if self.draining.get() || crew.is_draining() {
            return self.adopt(*live);
        }
        if let Err(live) = self.pass(usize::from(to), live) {
            self.adopt(*live); // That worker has left.
        }
    }

    /// Sends a connection to the worker `to`, or gives it back.
    fn pass(&self, to: usize, live: Box<Live>) -> Result<(), Box<Live>> {
        let (crew, own) = (&self.settings.crew, self.local.index());
        crew.reserve(to);
        crew.release(own);
        match crew.pass(own, to, Passed::Live(live)) {
            Err(Passed::Live(live)) => Err(live),
            _ => {
                count(&self.counters.handed_over);
                Ok(())
            }
        }
    }

    /// Goes on with a connection that was elsewhere.
    fn adopt(self: &Rc<Self>, mut live: Live) {
        let block = match live.input.len() {
            0 => None,
            bytes => self.local.pool().take_exact(bytes),
        };
        let homeless = block.is_none() && !live.input.is_empty();
        if homeless && !live.returned && live.from != self.local.index() {
            live.returned = true;
            match self.pass(live.from, Box::new(live)) {
                Ok(()) => return,
                Err(back) => live = *back,
            }
        }
        let Some(id) = self.attach(live.socket) else {
            return;
        };
        diagnose!(DEBUG, worker = self.local.index(), connection = id.token(), from = live.from,
            input_bytes = live.input.len(); "connection migrated from another worker");
        if homeless {
            // Its requests are lost, and must not be taken for answered.
            return self.abort(id, Ending::Exhausted);
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
                    let soon = self.local.now_ms() + u64::from(DRAIN_IDLE_MS);
                    deadline_ms = deadline_ms.min(soon);
                }
            }
            self.set_deadline(id, conn, deadline_ms);
            self.local.driver().receive(conn.stream);
        }
        if let Some(input) = input
            && shield::run(|| self.received(id, input)).is_none()
        {
            self.survive(Some(id)); // Its input is lost in the middle.
        }
    }

    /// The peer ended its direction while the connection was made quiet: it stays, is answered what
    /// it had asked before, and ends.
    pub(super) fn stay_to_end(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            (conn.leaving, conn.ended) = (None, true);
        }
        self.go_on(id);
        let is_over = |conn: &mut Conn| conn.phase == Phase::Ready;
        let over = self.conns.borrow_mut().get(id).is_some_and(is_over);
        if over {
            self.close(id, Ending::Client);
        }
    }
}
