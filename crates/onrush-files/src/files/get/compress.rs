//! Compression of objects while they are sent.
//!
//! Text is compressed if the client accepts it, as the engine compresses the responses of handlers
//! ([`onrush::compression`]). The worker compresses up to 8 KiB, and the offload pool pieces of 64
//! KiB; its threads have a lower priority, so compression delays no other request. They use a part
//! of the pool only. If that is busy, or the pool refuses the first piece, the object is sent as it
//! is. A later piece waits, and goes on if the pool stays busy. What reads and compresses follows
//! the pace of the client, and ends with it. Memory does not grow with the object, and a budget
//! limits that of all encoders.
//!
//! The result has a weak ETag of its own, because another version of the encoder may produce other
//! bytes, and no ranges: a request for a range gets one of the object itself, as does one with
//! `If-Match` or `If-Unmodified-Since`. An object of at most one piece is compressed before the
//! response begins, so the response has a length. If that does not make it smaller, it is sent as
//! it is.
//!
//! Only objects are compressed, which do not depend on the request: nothing that a third party puts
//! into a request is compressed together with a secret (BREACH).

use crate::files::get::reads::Reads;
use crate::files::http::http_error::HttpError;
use crate::files::object::LoadedObject;
use crate::files::object::object_fields::set;
use crate::files::shared::budget::Budget;
use crate::files::shared::pieces;
use onrush::compression::{Accepted, Coding, Encoder, Need, compress_known, is_worth_it};
use onrush::{Body, Request, Response};
use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::{Current, Outcome, evaluate};
use std::sync::Arc;

/// The maximum memory of all encoders of responses that are being sent.
pub(in crate::files) const ENCODERS_BYTES_MAX: usize = 64 << 20;

/// The least memory that an encoder counts as, so that the jobs of streams leave the offload pool
/// room for others, such as the verification of passwords: there are at most 32.
const ENCODER_BYTES_MIN: usize = ENCODERS_BYTES_MAX / 32;

/// The maximum number of first pieces in the offload pool. More are sent as they are.
pub(in crate::files) const FIRST_JOBS_MAX: usize = 16;

/// An object in a coding.
struct Form {
    /// The object with the fields of its compressed form.
    object: LoadedObject,
    /// The entity tag, without quotes.
    tag: String,
}

impl Form {
    fn new(loaded: &LoadedObject, coding: Coding) -> Form {
        let tag = format!("{}-{}", loaded.version().as_str(), coding.name());
        let fields = loaded.fields_with(coding);
        let mut object = (loaded.clone()).representing(loaded.content_type_of_name(), &fields);
        set(
            &mut object.fields,
            "ETag",
            format!("W/\"{tag}\"").as_bytes(),
        );
        set(&mut object.fields, "Accept-Ranges", b"none");
        Form { object, tag }
    }

    /// The state that preconditions are compared with.
    fn current(&self) -> Current<'_> {
        Current {
            etag: EntityTag::weak(self.tag.as_bytes()),
            ..self.object.current()
        }
    }

    fn response(self, body: Body) -> Response {
        self.object.add_fields(Response::with_body(body))
    }
}

/// The budget of [`ENCODERS_BYTES_MAX`].
pub(in crate::files) fn budget() -> Arc<Budget> {
    Budget::new(ENCODERS_BYTES_MAX)
}

impl Reads {
    /// The coding in which an object is going to be compressed for a request.
    pub(in crate::files) fn coding_for(
        &self,
        request: &Request,
        loaded: &LoadedObject,
        accepted: Accepted,
    ) -> Option<Coding> {
        let needs_object = ["range", "if-match", "if-unmodified-since"];
        let may_be = self.objects.options.compress
            && loaded.permits_coding()
            && is_worth_it(loaded.content_type(), Some(loaded.size))
            && needs_object
                .iter()
                .all(|name| request.header(name).is_none());
        may_be.then(|| accepted.best(Coding::has_encoder)).flatten()
    }

    /// The response with an object, compressed. `None`: it is to be sent as it is.
    pub(in crate::files) async fn compressed(
        &self,
        request: &Request,
        loaded: &LoadedObject,
        coding: Coding,
    ) -> Option<Response> {
        let form = Form::new(loaded, coding);
        match evaluate(true, &form.current(), request.headers()) {
            Outcome::Proceed => {}
            Outcome::NotModified => {
                return Some(Response::new(304).with_fields(form.object.fields));
            }
            Outcome::Failed => return Some(HttpError::PRECONDITION_FAILED.into_response(request)),
        }
        let take = |need| match need {
            Need::Memory => {
                let bytes = Encoder::memory_bytes(coding).max(ENCODER_BYTES_MIN);
                self.encoder_budget.take(bytes)
            }
            Need::Job => self.first_jobs.take(1),
        };
        let content = match loaded.stream(&self.pool) {
            Some(stream) => pieces::whole(stream, loaded.size),
            None => loaded.body(),
        };
        let for_head = request.method() == "HEAD";
        let encoded = compress_known(content, coding, for_head, take).await?;
        Some(form.response(encoded))
    }
}
