//! Makes a connection wait for its next request, or for the rest of one, after its responses have
//! been sent. A connection that waits for a new request is idle: it keeps a deadline and releases
//! its other state.

use crate::connections::ConnId;
use crate::engine::connection::state::{AfterFlush, Expects};
use crate::engine::lifecycle::Engine;
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::CloseReason;
use std::rc::Rc;

impl Engine {
    /// Sends `out`, and makes the connection idle when all of it was sent at once.
    #[inline]
    pub(super) fn flush_and_idle(self: &Rc<Self>, id: ConnId, out: &[u8]) {
        let conns = &self.conns; // As in `receive`.
        let sent = match conns.all().get(id) {
            Some(conn) => match conns.io.send_or_queue(conn, out) {
                Ok(Sent::All) if conn.needs_no_work() && !conns.shutdown.has_begun() => {
                    conn.release_active();
                    return conns.set_timeout(id, conn, self.limits().idle_timeout_ms);
                }
                sent => sent,
            },
            None => Err(connection_gone()),
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
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            if conn.state.is_paused() {
                // A body was read directly, or much input was queued.
                conn.resume_receiving();
            }
            if conn.state.expects() != Expects::Head {
                if conn.state.expects() != Expects::RestOfBody {
                    conn.release_active();
                }
                conn.set_idle_deadline();
            }
            if !conn.state.has_ended() && conn.transport.received_len() > 0 {
                drop(conn);
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
}
