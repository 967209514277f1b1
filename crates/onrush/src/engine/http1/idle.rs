//! Makes a connection wait for its next request, or for the rest of one, after its responses have
//! been sent. A connection that waits for a new request is idle: it keeps a deadline and releases
//! its other state.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{AfterFlush, Expects};
use crate::engine::lifecycle::Engine;
use crate::engine::shared::deadlines::{DRAIN_IDLE_MS, Wait};
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::CloseReason;
use std::rc::Rc;

/// The time limit of a connection whose response was sent and whose client sends the rest of the
/// body too slowly: it can be closed.
const CLOSE_SOON_MS: u32 = 1;

impl Engine {
    /// Sends `out`, and makes the connection idle when all of it was sent at once.
    #[inline]
    pub(super) fn flush_and_idle(self: &Rc<Self>, id: ConnId, out: &[u8]) {
        let sent = {
            let mut conns = self.conns.borrow_mut();
            match conns.get(id) {
                Some(conn) => match self.io.send_or_queue(conn, out) {
                    Ok(Sent::All) if conn.needs_no_work() && !self.shutdown.has_begun() => {
                        conn.release_active();
                        return self.deadlines().set_timeout(
                            id,
                            conn,
                            self.limits().idle_timeout_ms,
                        );
                    }
                    sent => sent,
                },
                None => Err(connection_gone()),
            }
        };
        if self.after_send(id, sent, AfterFlush::Continue) {
            self.wait_for_input(id);
        } else {
            self.reclaim_memory();
        }
    }

    /// Makes a connection wait for input after all responses have been sent. Resumes receiving, and
    /// closes a connection whose client has half-closed.
    #[inline(never)]
    fn wait_for_input(self: &Rc<Self>, id: ConnId) {
        let (ended, expects) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            if conn.state.is_paused() {
                // A body was read directly, or much input was queued.
                self.io.resume(id, conn);
            }
            if conn.state.expects() != Expects::Head {
                if conn.state.expects() != Expects::RestOfBody {
                    conn.release_active();
                }
                self.set_idle_deadline(id, conn);
            }
            if !conn.state.has_ended() && conn.transport.received_len() > 0 {
                drop(conns);
                // A part of a record, which arrived behind the request.
                return self.list_partial_record(id);
            }
            (conn.state.has_ended(), conn.state.expects())
        };
        if ended {
            self.close(id, CloseReason::Client); // A partial head cannot become complete.
        } else if expects == Expects::Head {
            self.reclaim_memory();
        } else if self.is_passing() {
            self.pass_on_if_idle(id);
        }
    }

    /// Sets the deadline of a connection that waits for its next request or for the rest of a body.
    pub(in crate::engine) fn set_idle_deadline(&self, id: ConnId, conn: &mut Conn) {
        let limit_ms = match conn.state.expects() {
            _ if self.shutdown.ends(conn) => DRAIN_IDLE_MS,
            Expects::Request | Expects::Head | Expects::Handshake | Expects::Nothing => {
                self.limits().idle_timeout_ms
            }
            Expects::RestOfBody => match self.deadlines().begin_measured_wait(conn, Wait::Body) {
                true => self.limits().body_timeout_ms,
                false => CLOSE_SOON_MS,
            },
        };
        self.deadlines().set_timeout(id, conn, limit_ms);
    }
}
