//! Renders responses. Small ones are appended to one buffer; `send_response` sends larger ones.

use crate::body::Content;
use crate::connections::{ConnId, RequestId};
use crate::engine::connection::{Conn, Responding};
use crate::engine::http1::send_response::SMALL_BYTES;
use crate::engine::lifecycle::Engine;
use crate::response::Response;
use onrush_proto::connection::{After, SendAs};
use onrush_proto::response::ContentLength;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Sends the rest of a response. Its output is what follows, or `None` when the connection had to
/// be closed.
pub(super) type SendFuture = Pin<Box<dyn Future<Output = Option<After>>>>;

/// The result of rendering a response.
pub(in crate::engine) enum Rendered {
    /// The connection is gone.
    Gone,
    /// The buffer holds the complete response.
    Whole(After),
    /// The future has taken the buffer, and sends it with the rest of the response.
    Sending(SendFuture, Responding),
}

/// Whether the request body is read while the response is sent: the handler has handed it over to
/// what makes the content. The client may wait for a 100 before it sends the body, and no 100 can
/// follow the head of the response.
#[cold]
fn may_be_read_later(conn: &mut Conn, response: &Response) -> bool {
    let is_stream = matches!(response.body.0, Content::Stream(_));
    let present = RequestId::counted(conn.response_count);
    is_stream && conn.active().exchange.dropped_body != Some(present)
}

impl Engine {
    /// [`Engine::render_response`], not inlined: for responses that were not ready at once.
    #[inline(never)]
    pub(super) fn render_response_cold(
        self: &Rc<Self>,
        id: ConnId,
        response: &mut Response,
        out: &mut Vec<u8>,
    ) -> Rendered {
        self.render_response(id, response, out, 0)
    }

    /// Appends a response to `out`, or prepares a future that sends it. `behind`: bytes received
    /// behind this request, in addition to the queued input.
    #[inline(always)]
    pub(super) fn render_response(
        self: &Rc<Self>,
        id: ConnId,
        response: &mut Response,
        out: &mut Vec<u8>,
        behind: usize,
    ) -> Rendered {
        match self.conns.io.log.is_on() {
            true => self.render_logged(id, behind, response, out),
            false => self.render::<false>(id, behind, response, out),
        }
    }

    #[inline(never)]
    fn render_logged(
        self: &Rc<Self>,
        id: ConnId,
        behind: usize,
        response: &mut Response,
        out: &mut Vec<u8>,
    ) -> Rendered {
        self.render::<true>(id, behind, response, out)
    }

    /// [`Engine::render_response`], compiled once with an access log and once without: the values
    /// that the log needs occupy registers on the hot path.
    #[inline(always)]
    fn render<const LOGS: bool>(
        self: &Rc<Self>,
        id: ConnId,
        behind: usize,
        response: &mut Response,
        out: &mut Vec<u8>,
    ) -> Rendered {
        if response.status.0 == 101 {
            self.check_upgrade(id, response);
        }
        let date = self.conns.rendering.date();
        let mut rendered_before = out.len();
        let mut conns = self.conns.all(); // As in `receive`.
        let Some(conn) = conns.get(id) else {
            return Rendered::Gone;
        };
        let reject = conn
            .active
            .as_mut()
            .and_then(|active| active.exchange.reject.take());
        if let Some(reject) = reject.filter(|_| response.status.0 < 400) {
            // The body broke a rule after the handler had started, so the response is an error.
            conn.machine.send_reject(reject, &date, out);
            self.conns
                .io
                .measurements
                .respond(conn, reject.status, None);
            if LOGS {
                self.conns
                    .io
                    .log
                    .respond_whole(conn, reject.status, rendered_before, out);
            }
            return Rendered::Whole(self.conns.finish_request(conn));
        }
        if conn.machine.continue_due() && may_be_read_later(conn, response) {
            conn.machine.send_continue(out);
            rendered_before = out.len();
        }
        let length = response.body.length();
        let close = response.close
            || (self.conns.shutdown.ends(conn) && self.conns.is_last(id, conn, behind));
        let send_as = match length {
            Some(bytes) if response.fields.is_empty() && !close => conn.machine.send_plain_head(
                response.status.0,
                response.content_type,
                bytes,
                &date,
                &mut self.conns.rendering.heads(),
                out,
            ),
            _ => conn.machine.send_head(
                response.status.0,
                response.content_type,
                response.fields.as_bytes(),
                length.map_or(ContentLength::Unknown, ContentLength::Known),
                &date,
                close,
                out,
            ),
        };
        if self.conns.io.measurements.are_on() {
            let body_bytes = match send_as {
                SendAs::Nothing => Some(0),
                _ => length,
            };
            self.conns
                .io
                .measurements
                .respond(conn, response.status.0, body_bytes);
        }
        let head_bytes = out.len() - rendered_before;
        match (send_as, &response.body.0) {
            (SendAs::Nothing, _) => {}
            (SendAs::Length(_), Content::Static(bytes)) if bytes.len() <= SMALL_BYTES => {
                out.extend_from_slice(bytes);
            }
            (SendAs::Length(_), Content::Bytes(bytes)) if bytes.get().len() <= SMALL_BYTES => {
                out.extend_from_slice(bytes.get());
            }
            #[cfg(feature = "coroutine")]
            (SendAs::Length(_), Content::Pooled(kept)) if kept.0.len() <= SMALL_BYTES => {
                out.extend_from_slice(&kept.0);
            }
            _ => {
                if LOGS {
                    let status = response.status.0;
                    self.conns
                        .io
                        .log
                        .respond(conn, status, rendered_before, head_bytes, None);
                }
                let (head, content) = (std::mem::take(out), std::mem::take(&mut response.body.0));
                let responding = match (&content, send_as) {
                    (Content::Stream(_), SendAs::UntilClose) => Responding::UntilClose,
                    (Content::Stream(_), _) => Responding::Stream,
                    _ => Responding::Known,
                };
                return Rendered::Sending(self.sending(id, head, content, send_as), responding);
            }
        }
        if LOGS {
            let bytes = Some(out.len() - rendered_before);
            self.conns
                .io
                .log
                .respond(conn, response.status.0, rendered_before, head_bytes, bytes);
        }
        Rendered::Whole(self.conns.finish_request(conn))
    }

    /// Replaces a 101 that was made for another request.
    #[cold]
    fn check_upgrade(&self, id: ConnId, response: &mut Response) {
        let conn = self.conns.open(id);
        if !conn.is_some_and(|conn| conn.machine.may_upgrade()) {
            *response = Response::internal_error();
        }
    }

    #[inline(never)]
    fn sending(
        self: &Rc<Self>,
        id: ConnId,
        head: Vec<u8>,
        content: Content,
        send_as: SendAs,
    ) -> SendFuture {
        Box::pin(self.clone().send_response(id, head, content, send_as))
    }
}
