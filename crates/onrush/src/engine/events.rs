//! The event handler of a worker. It handles the events `End`, `Readable` and `ReceiveStopped`
//! itself, and passes the others to the modules that handle them.

use crate::connections::ConnId;
use crate::engine::connection::state::Phase;
use crate::engine::lifecycle::Engine;
use crate::metrics::CloseReason;
use onrush_rt::driver::Event;
use onrush_rt::worker::{Blocked, EventHandler};
use onrush_rt::{diagnose, user};
use std::io;
use std::rc::Rc;

/// The engine as the event handler of its worker.
#[derive(Debug)]
pub(crate) struct EngineHandler(pub(crate) Rc<Engine>);

impl EventHandler for EngineHandler {
    #[inline]
    fn on_event(&self, event: Event) {
        match event {
            Event::Data { token, data, .. } => self.0.on_data(ConnId::from_token(token), data),
            Event::Accepted { listener, socket } => {
                self.0.accept(self.0.listeners.incoming(listener, socket));
            }
            Event::End { token, result, .. } => self.0.on_end(ConnId::from_token(token), result),
            Event::ReceiveStopped { token, .. } => {
                self.0.on_readable(ConnId::from_token(token), true)
            }
            Event::Readable { token, .. } => self.0.on_readable(ConnId::from_token(token), false),
            Event::Writable { token, .. } => self.0.on_writable(ConnId::from_token(token)),
            Event::AcceptPaused { error, .. } => self.0.accept_paused(&error),
        }
    }

    fn on_timer(&self, payload: u64) {
        self.0.timer_fired(ConnId::from_token(payload));
    }

    fn on_notify(&self) {
        self.0.receive_transfers();
        self.0.end_clients();
    }

    #[inline]
    fn on_wake(&self) {
        self.0.rebalance_tick();
        self.0.reclaim_memory(); // The driver may have allocated memory for receiving.
    }

    fn on_blocked(&self, blocked: Blocked) {
        self.0.report_own_stall(blocked);
    }

    fn on_panic(&self, token: Option<u64>) -> bool {
        self.0.recover_from_panic(token.map(ConnId::from_token));
        true
    }
}

impl Engine {
    /// The client has half-closed (`Ok`), or the connection is broken. Closes the connection, or
    /// wakes the reader of its body, which finds the end.
    pub(super) fn on_end(self: &Rc<Self>, id: ConnId, result: io::Result<()>) {
        if result.is_err() {
            return self.close(id, CloseReason::Broken);
        }
        let (phase, is_waiting, reader) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.state.end();
            diagnose!(TRACE, connection = id.token(), phase = conn.state.phase().name();
                "the client has half-closed (EOF)");
            let is_waiting = conn.transport.is_handshake_waiting();
            (conn.state.phase(), is_waiting, conn.take_reader())
        };
        match phase {
            // Its records, perhaps with a request, wait for their turn.
            Phase::ProxyHeader => self.end_in_proxy_header(id),
            Phase::Ready if is_waiting => {}
            Phase::Ready => self.close(id, CloseReason::Client),
            Phase::Lingering => self.close(id, CloseReason::Complete),
            Phase::Leaving => self.cancel_migration(id),
            // Otherwise the task notices it.
            Phase::Busy => _ = self.end_if_gone(id),
            Phase::Streams => self.end_of_streams(id),
            Phase::Flushing(_) => {} // The pending send notices it.
        }
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }

    /// The socket of a connection whose body is read directly is readable, or the driver has
    /// stopped receiving.
    fn on_readable(self: &Rc<Self>, id: ConnId, receive_stopped: bool) {
        let reader = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            if receive_stopped && conn.state.phase() == Phase::Leaving {
                drop(conn);
                return self.finish_migration(id);
            }
            if conn.active.is_none() {
                return;
            }
            if receive_stopped {
                conn.state.receiving_stopped();
            }
            conn.take_reader()
        };
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }
}
