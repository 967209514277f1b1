//! Responses: their heads, and content that fits at once.

use crate::body::{Content, Part};
use crate::connections::RequestId;
use crate::engine::connection::http2::OUT_BYTES_MAX;
use crate::engine::http1::send_response::SMALL_BYTES;
use crate::engine::lifecycle::Engine;
use crate::response::Response;
use onrush_proto::connection::SendAs;
use onrush_proto::http2::sending::ResponseHead;
use onrush_proto::http2::tunnel::Tunnel;
use onrush_proto::reject::Reject;
use onrush_proto::response::ContentLength;
use std::rc::Rc;

/// The response to an extended CONNECT whose handler knows of no upgrades.
const NOT_SPOKEN: Reject = Reject::new(501, "the protocol is not spoken here");

/// What is left to do for a response.
pub(super) enum Responded {
    /// The stream is gone.
    Gone,
    /// It is complete.
    Whole,
    /// This content follows.
    Content(Content, SendAs),
}

/// The response to a request that breaks a rule or exceeds a limit.
pub(super) fn rejection(reject: Reject) -> Response {
    Response::text(format!("{}\n", reject.reason)).with_status(reject.status)
}

/// Whether content can be sent as soon as there is room for it.
pub(super) fn is_in_memory(content: &Content) -> bool {
    match content {
        Content::Static(_) | Content::Bytes(_) => true,
        Content::Parts(parts) => {
            matches!(parts.get().front(), Some(Part::Bytes(bytes)) if !bytes.is_empty())
        }
        _ => false,
    }
}

impl Engine {
    /// Replaces a response that must not be sent to this request. Returns whether it begins another
    /// protocol.
    fn replace_response(&self, request: RequestId, response: &mut Response) -> bool {
        let (reject, tunnel) = match self.conns.stream(request) {
            Some(mut stream) => {
                let tunnel = stream.http2().machine.tunnel(request.number);
                (stream.slot().exchange.reject.take(), tunnel)
            }
            None => (None, Tunnel::No),
        };
        match (reject, response.status.0, tunnel) {
            (None, 101, Tunnel::Permitted) => true,
            // The body broke a rule after the handler had started.
            (Some(reject), ..400, _) => {
                *response = rejection(reject);
                false
            }
            // There is no other protocol to switch to.
            (_, 101, _) => {
                *response = Response::internal_error();
                false
            }
            // The client would take it for the begin of its protocol, and the content for that.
            (_, 200..300, Tunnel::Asked | Tunnel::Permitted) => {
                *response = rejection(NOT_SPOKEN);
                false
            }
            _ => false,
        }
    }

    /// Adds a response to the frames of its connection.
    pub(super) fn respond(
        self: &Rc<Self>,
        request: RequestId,
        response: &mut Response,
    ) -> Responded {
        let begins = self.replace_response(request, response);
        let date = self.conns.rendering.date();
        let number = request.number;
        let Some(mut conn) = self.conns.open(request.connection) else {
            return Responded::Gone;
        };
        let unsent = conn.unsent_len();
        let Some(http2) = conn.http2() else {
            return Responded::Gone;
        };
        if !http2.machine.is_open(number) {
            return Responded::Gone;
        }
        if let Some(slot) = http2.slot(number)
            && slot.expects
            && !slot.is_discarded
            && matches!(response.body.0, Content::Stream(_))
        {
            // The body is read while the response is sent, and no 100 can follow its head.
            slot.expects = false;
            (http2.machine).send_interim(number, 100, b"", &mut http2.out);
        }
        let length = response.body.length();
        // The client gets the status that means the same in HTTP/2.
        let status = if begins { 200 } else { response.status.0 };
        let head = ResponseHead {
            status: response.status.0,
            content_type: response.content_type,
            fields: response.fields.as_bytes(),
            length: length.map_or(ContentLength::Unknown, ContentLength::Known),
            date: &date,
        };
        self.conns.rendering.provide_frames(&mut http2.out);
        let before = http2.out.len();
        let send_as = http2.machine.send_head(number, &head, &mut http2.out);
        let head_bytes = http2.out.len() - before;
        let room = http2.machine.room(number);
        let small = match (send_as, &response.body.0) {
            (SendAs::Nothing, _) => Some(&b""[..]),
            (SendAs::Length(_), Content::Static(bytes)) => Some(*bytes),
            (SendAs::Length(_), Content::Bytes(bytes)) => Some(&bytes.get()[..]),
            #[cfg(feature = "coroutine")]
            (SendAs::Length(_), Content::Pooled(kept)) => Some(&kept.0[..]),
            _ => None,
        };
        let fits = |bytes: &&[u8]| {
            bytes.is_empty()
                || (bytes.len() <= SMALL_BYTES.min(room) && before + unsent < OUT_BYTES_MAX)
        };
        let small = small.filter(fits);
        if let Some(bytes) = small.filter(|_| send_as != SendAs::Nothing) {
            (http2.machine).send_data_head(number, bytes.len(), true, &mut http2.out);
            http2.out.extend_from_slice(bytes);
        }
        if response.close {
            http2.machine.end(&mut http2.out);
            http2.ends = true;
        }
        let body_bytes = match send_as {
            SendAs::Nothing => Some(0),
            _ => length,
        };
        let mut exchange = http2.slot(number).map(|slot| &mut slot.exchange);
        (self.conns.io.measurements).respond_to(exchange.as_deref_mut(), status, body_bytes);
        if self.conns.io.log.is_on()
            && let Some(exchange) = exchange
        {
            exchange.log_entries.respond(status, 0, head_bytes, None);
            exchange.log_entries.accept(head_bytes);
            exchange.log_entries.accept(small.map_or(0, <[u8]>::len));
        }
        conn.note_due();
        drop(conn);
        if begins {
            self.begin_tunnel(request);
        }
        match small {
            Some(_) => Responded::Whole,
            None => Responded::Content(std::mem::take(&mut response.body.0), send_as),
        }
    }

    /// The content of a stream follows at once.
    pub(super) fn expect_content(&self, request: RequestId) {
        if let Some(mut stream) = self.conns.stream(request) {
            stream.http2().expect_content(request.number);
        }
    }
}
