//! Compression of objects while they are sent.
//!
//! Text is compressed if the client accepts it, by the offload pool in pieces of 64 KiB. A worker
//! only passes pieces on, and the threads of the pool have a lower priority, so compression delays
//! no other request. They use a part of the pool only. If that is busy, or the pool refuses the
//! first piece, the object is sent as it is.
//! A later piece that is refused waits, as for a slow client. The task that reads and compresses
//! follows the pace of the client, and ends at the next piece after the client has disconnected.
//! Memory does not grow with the object, and a budget limits that of all encoders.
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
use crate::files::shared::budget::{Budget, Lease};
use onrush::body::BodySender;
use onrush::compression::{Accepted, Coding, Encoder, Then, is_compressible};
use onrush::offload::OffloadError;
use onrush::{Body, Bytes, Request, Response, WorkerHandle};
use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::{Current, Outcome, evaluate};
use onrush_store::ByteStream;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Smaller objects are not compressed: with their head they fit into one or two packets anyway.
const BYTES_MIN: u64 = 1024;

/// The maximum number of bytes that are compressed at once.
pub(in crate::files) const PIECE_BYTES: usize = 64 * 1024;

/// The compressed bytes that may wait for the client, and one piece more.
const QUEUE_BYTES: usize = 64 * 1024;

/// The maximum memory of all encoders of responses that are being sent.
pub(in crate::files) const ENCODERS_BYTES_MAX: usize = 64 << 20;

/// The least memory that an encoder counts as, so that the jobs of streams leave the offload pool
/// room for others, such as the verification of passwords: there are at most 32.
const ENCODER_BYTES_MIN: usize = ENCODERS_BYTES_MAX / 32;

/// The maximum number of first pieces in the offload pool. More are sent as they are.
pub(in crate::files) const FIRST_JOBS_MAX: usize = 16;

/// How often a refused piece is tried again, and the time between.
const BUSY_TRIES: u32 = 600;
const BUSY_WAIT: Duration = Duration::from_millis(50);

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

/// A response that is being compressed.
struct Compression {
    worker: WorkerHandle,
    /// Shared with a job, so that it outlives a job that is refused.
    encoder: Arc<Mutex<Encoder>>,
    /// `None`: the whole object was in memory.
    source: Option<ByteStream>,
    /// What was read and is not compressed yet.
    rest: Bytes,
    /// The bytes of the object that have not been compressed.
    left: u64,
}

impl Compression {
    /// The next piece; empty at the end.
    async fn next(&mut self) -> io::Result<Bytes> {
        while self.rest.is_empty() && self.left > 0 {
            let read = match &mut self.source {
                Some(source) => poll_fn(|cx| source.as_mut().poll_next(cx)).await,
                None => None,
            };
            let short = || Err(io::ErrorKind::UnexpectedEof.into());
            self.rest = read.map_or_else(short, |read| read.map_err(io::Error::other))?;
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        self.left = self.left.saturating_sub(piece.len() as u64);
        Ok(piece)
    }

    /// Compresses a piece on the offload pool. `is_last`: ends the content.
    async fn encode(
        &self,
        piece: &Bytes,
        is_last: bool,
    ) -> Result<io::Result<Bytes>, OffloadError> {
        let (encoder, piece) = (self.encoder.clone(), piece.clone());
        let then = match is_last {
            true => Then::End,
            false => Then::Continue,
        };
        let job = move || {
            let mut encoder = encoder.lock().unwrap_or_else(PoisonError::into_inner);
            encoder.encode(&piece, then).map(Bytes::from)
        };
        self.worker.offload(job).await
    }

    /// Sends what follows `first`. `_lease`: the memory of the encoder.
    async fn run(mut self, first: Bytes, mut sender: BodySender, _lease: Lease) {
        match self.send_all(first, &mut sender).await {
            Ok(()) => sender.finish(),
            Err(error) => sender.abort(error), // Without effect if the client has disconnected.
        }
    }

    async fn send_all(&mut self, first: Bytes, sender: &mut BodySender) -> io::Result<()> {
        sender.send(first).await?;
        while self.left > 0 {
            let piece = self.next().await?;
            let mut tries = 0;
            let encoded = loop {
                match self.encode(&piece, self.left == 0).await {
                    Ok(encoded) => break encoded?,
                    Err(OffloadError::Panicked) => return Err(io::Error::other("it panicked")),
                    Err(_) if tries < BUSY_TRIES => tries += 1,
                    Err(error) => return Err(io::Error::other(error)),
                }
                self.worker.sleep(BUSY_WAIT).await;
            };
            sender.send(encoded).await?;
        }
        Ok(())
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
            && loaded.size >= BYTES_MIN
            && loaded.permits_coding()
            && is_compressible(loaded.content_type())
            && needs_object
                .iter()
                .all(|name| request.header(name).is_none());
        // Brotli is too slow to compress at the pace of a client.
        let coding = accepted.best(|coding| coding != Coding::Brotli);
        coding.filter(|_| may_be)
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
        let is_whole = loaded.size <= PIECE_BYTES as u64;
        let lease = match is_whole {
            true => None, // Its encoder lives only as long as the job.
            false => {
                let bytes = Encoder::memory_bytes(coding).max(ENCODER_BYTES_MIN);
                Some(self.encoder_budget.take(bytes)?)
            }
        };
        if request.method() == "HEAD" && !is_whole {
            return Some(form.response(Body::channel(1).1));
        }
        let worker = request.worker().clone();
        let mut compression = Compression {
            encoder: Arc::new(Mutex::new(Encoder::new(coding, Some(loaded.size)).ok()?)),
            source: loaded.stream(&self.pool),
            rest: loaded.bytes_in_memory().cloned().unwrap_or_default(),
            left: loaded.size,
            worker: worker.clone(),
        };
        // An error of reading is found again, and reported, when the object is sent as it is.
        let mut first = compression.next().await.ok()?;
        if is_whole && compression.left > 0 {
            let mut all = first.to_vec();
            while compression.left > 0 {
                all.extend_from_slice(&compression.next().await.ok()?);
            }
            first = all.into();
        }
        let is_last = compression.left == 0;
        let encoded = {
            let _place = self.first_jobs.take(1)?;
            compression.encode(&first, is_last).await.ok()?.ok()?
        };
        let Some(lease) = lease else {
            let is_smaller = (encoded.len() as u64) < loaded.size;
            return is_smaller.then(|| form.response(encoded.into()));
        };
        let (sender, body) = Body::channel(QUEUE_BYTES);
        worker
            .spawn(compression.run(encoded, sender, lease))
            .detach();
        Some(form.response(body))
    }
}
