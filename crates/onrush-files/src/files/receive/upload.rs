//! Receives bodies of any length in a limited amount of memory.
//!
//! A long upload takes one of the shared [`Buffers`] when bytes have arrived, and holds it until
//! they are written. Meanwhile it fills the next one if one is free. A short upload, or one of
//! unknown length, collects its bytes in buffers of its own, so that it is written in few pieces. A
//! budget for all uploads grants their memory. When the budget is used up, an upload gets a small
//! amount of memory and is slower.

use crate::files::http::digest::Digests;
use crate::files::http::http_error::HttpError;
use crate::files::http::http_error::Operation;
use crate::files::shared::budget::{Budget, Lease};
use crate::files::shared::buffers::{BufferUser, Buffers, PooledBuffer};
use crate::files::shared::client_rights::Permission;
use crate::files::shared::objects::Objects;
use crate::files::upload_limits::UploadLimits;
use onrush::{Reject, RequestBody};
use onrush_rt::coop;
use onrush_store::Key;
use onrush_store::{Committed, StoreError, Upload};
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Bodies longer than this use the shared buffers. It is also the maximum size of each of an
/// upload's own buffers.
const OWN_BUFFER_BYTES: usize = 256 * 1024;
/// The total size of an upload's own buffers when the budget is used up.
const SMALL_BUFFER_BYTES: usize = 16 * 1024;

/// The buffers of all uploads: shared ones, and a budget for buffers of single uploads.
#[derive(Debug)]
pub(in crate::files) struct UploadBuffers {
    shared: Arc<Buffers>,
    own_budget: Arc<Budget>,
}

impl UploadBuffers {
    /// Buffers of about `bytes_max` in total. Uploads share `per_core` of them for each core.
    pub(in crate::files) fn new(bytes_max: usize, per_core: usize) -> UploadBuffers {
        UploadBuffers {
            shared: Buffers::for_all_cores(per_core, bytes_max / 2),
            own_budget: Budget::new(bytes_max / 2),
        }
    }

    /// Reserves memory for an upload's own buffers: `wanted` bytes if the budget has them,
    /// otherwise [`SMALL_BUFFER_BYTES`], which the budget does not count. Returns the size.
    fn reserve_own(&self, wanted: usize) -> (Option<Lease>, usize) {
        if wanted <= SMALL_BUFFER_BYTES {
            return (None, wanted);
        }
        match self.own_budget.take(wanted) {
            Some(lease) => (Some(lease), wanted),
            None => (None, SMALL_BUFFER_BYTES),
        }
    }
}

/// The reason why a body was not stored.
pub(in crate::files) enum ReceiveError {
    /// The body is incomplete or invalid. The response states the reason.
    Body(HttpError),
    Store(StoreError),
}

/// Takes the bytes of a body, in order.
pub(in crate::files) trait Sink {
    /// Takes the bytes of `buf` and returns an empty buffer, as [`Upload::write`].
    async fn write(&mut self, buf: Vec<u8>) -> Result<Vec<u8>, ReceiveError>;
}

/// An upload whose bytes are verified.
pub(in crate::files) struct VerifiedUpload {
    upload: Box<dyn Upload>,
    digests: Digests,
    limits: UploadLimits,
}

impl VerifiedUpload {
    /// `digests`: those of the whole object.
    pub(in crate::files) fn new(
        upload: Box<dyn Upload>,
        digests: Digests,
        limits: UploadLimits,
    ) -> VerifiedUpload {
        VerifiedUpload {
            upload,
            digests,
            limits,
        }
    }

    /// Publishes the object, if the digests are those that were demanded, and the client may still
    /// do that. Otherwise the bytes are discarded.
    pub(in crate::files) async fn commit(
        self,
        permission: &Permission,
    ) -> Result<Committed, ReceiveError> {
        permission.check().map_err(ReceiveError::Body)?;
        self.digests.check().map_err(ReceiveError::Body)?;
        self.upload.commit().await.map_err(ReceiveError::Store)
    }
}

impl Sink for VerifiedUpload {
    async fn write(&mut self, buf: Vec<u8>) -> Result<Vec<u8>, ReceiveError> {
        let bytes = self.upload.written_bytes().saturating_add(buf.len() as u64);
        if bytes > self.limits.object_bytes_max {
            return Err(ReceiveError::Body(self.limits.too_large()));
        }
        self.digests.update(&buf).await;
        self.upload.write(buf).await.map_err(ReceiveError::Store)
    }
}

/// Says whether a transfer should end before its body does, and wakes the task when that changes.
pub(in crate::files) type Stop<'s> = &'s dyn Fn(&mut Context<'_>) -> bool;

/// The response to a transfer that [`Stop`] has ended.
const STOPPED: HttpError = HttpError::new(409, "another request continues this upload");
const INCOMPLETE: HttpError = HttpError::new(400, "the body is incomplete");
const OVERLONG: HttpError = HttpError::new(400, "the body is longer than it has announced");

/// A sink that counts what a body of declared length has.
struct Counted<'s, S> {
    sink: &'s mut S,
    /// What has not arrived, in bytes; `None` if the length is not declared.
    left: Option<u64>,
}

impl<S: Sink> Sink for Counted<'_, S> {
    async fn write(&mut self, buf: Vec<u8>) -> Result<Vec<u8>, ReceiveError> {
        if let Some(left) = &mut self.left {
            let rest = left.checked_sub(buf.len() as u64);
            *left = rest.ok_or(ReceiveError::Body(OVERLONG))?;
        }
        self.sink.write(buf).await
    }
}

/// Receives a body into `sink`. If the body ends early, the sink has got all bytes that arrived.
///
/// With a `length`, the body has exactly so many bytes, or this fails. The engine promises that as
/// well. It is checked again here, because every body that becomes an object comes this way, and
/// what is incomplete must not become one. (Forms do not; they say themselves where they end.)
pub(in crate::files) async fn receive(
    body: &mut RequestBody,
    length: Option<u64>,
    sink: &mut impl Sink,
    buffers: &UploadBuffers,
    stop: Stop<'_>,
) -> Result<(), ReceiveError> {
    let mut sink = Counted { sink, left: length };
    receive_counted(body, length, &mut sink, buffers, stop).await?;
    match (sink.left, body.remaining()) {
        (None, _) => Ok(()),
        (Some(1..), _) => Err(ReceiveError::Body(INCOMPLETE)),
        (Some(0), Some(1..)) => Err(ReceiveError::Body(OVERLONG)),
        (Some(0), _) => Ok(()), // It is not known of a client that has gone.
    }
}

async fn receive_counted(
    body: &mut RequestBody,
    length: Option<u64>,
    sink: &mut impl Sink,
    buffers: &UploadBuffers,
    stop: Stop<'_>,
) -> Result<(), ReceiveError> {
    match length {
        // There is nothing to wait for, so nothing to stop: it may be the end of a long upload.
        Some(0) => Ok(()),
        Some(length) if length <= OWN_BUFFER_BYTES as u64 => {
            let (_lease, bytes) = buffers.reserve_own(length as usize);
            receive_sequential(body, sink, bytes.max(1), stop).await
        }
        Some(_) => {
            let shared = buffers.shared.user();
            receive_overlapped(body, sink, shared, Fill::Available, stop).await
        }
        None => {
            let (_lease, bytes) = buffers.reserve_own(2 * OWN_BUFFER_BYTES);
            let own = Buffers::new(2, bytes / 2);
            receive_overlapped(body, sink, own.user(), Fill::Full, stop).await
        }
    }
}

/// Fills a buffer of `bytes` and writes it, until the body is complete. Used for short bodies.
async fn receive_sequential(
    body: &mut RequestBody,
    sink: &mut impl Sink,
    bytes: usize,
    stop: Stop<'_>,
) -> Result<(), ReceiveError> {
    let mut buffer = Vec::with_capacity(bytes);
    loop {
        let filled = fill_whole(body, &mut buffer, stop).await;
        if buffer.is_empty() {
            return filled;
        }
        buffer = sink.write(buffer).await?;
        filled?;
        if body.remaining() == Some(0) {
            return Ok(());
        }
        if buffer.capacity() == 0 {
            buffer.reserve_exact(bytes); // The store has kept the first one.
        }
    }
}

/// Appends to `buffer` until it is full or the body has ended.
async fn fill_whole(
    body: &mut RequestBody,
    buffer: &mut Vec<u8>,
    stop: Stop<'_>,
) -> Result<(), ReceiveError> {
    poll_fn(|cx| {
        while buffer.len() < buffer.capacity() {
            if stop(cx) {
                return Poll::Ready(Err(ReceiveError::Body(STOPPED)));
            }
            match ready!(body.poll_fill_whole(cx, buffer)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(body_error(error))),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}

/// Fills one buffer while another one is written. Used for long bodies and for those of unknown
/// length.
async fn receive_overlapped(
    body: &mut RequestBody,
    sink: &mut impl Sink,
    buffers: BufferUser,
    how: Fill,
    stop: Stop<'_>,
) -> Result<(), ReceiveError> {
    let mut full = fill(body, &buffers, how, stop).await?;
    while !full.bytes.is_empty() {
        let write = async {
            full.bytes = sink.write(mem::take(&mut full.bytes)).await?;
            drop(full); // Returns the buffer before the next bytes arrive.
            Ok(())
        };
        if body.remaining() == Some(0) {
            write.await?;
            break;
        }
        full = unless_failed(write, fill(body, &buffers, how, stop)).await??;
    }
    Ok(())
}

/// When a buffer is written.
#[derive(Clone, Copy)]
enum Fill {
    /// As soon as no more bytes are available.
    Available,
    /// When it is full or the body ends.
    Full,
}

/// Returns a buffer with the next bytes of the body. It is empty at the end of the body. Bytes that
/// arrived before a failure are returned first; the next call fails.
async fn fill(
    body: &mut RequestBody,
    buffers: &BufferUser,
    how: Fill,
    stop: Stop<'_>,
) -> Result<PooledBuffer, ReceiveError> {
    let mut held: Option<PooledBuffer> = None;
    poll_fn(|cx| {
        let buffer = match &mut held {
            Some(held) => held,
            None => held.insert(ready!(buffers.poll_take(cx.waker()))),
        };
        while buffer.bytes.len() < buffer.bytes.capacity() {
            if stop(cx) {
                match buffer.bytes.is_empty() {
                    true => return Poll::Ready(Err(ReceiveError::Body(STOPPED))),
                    false => break,
                }
            }
            match body.poll_fill_whole(cx, &mut buffer.bytes) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) if !buffer.bytes.is_empty() => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(body_error(error))),
                // The budget of this poll is used up. The upload keeps its buffer for the next
                // iteration: alternating between uploads costs 15 % more CPU time, because the
                // buffers leave the CPU's caches and the clients are woken more often. The write or
                // the digests may have used up the budget while the client sends nothing. So wake
                // the task: its next poll releases the buffer of a silent client.
                Poll::Pending if coop::is_exhausted() => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => match how {
                    Fill::Available if !buffer.bytes.is_empty() => break,
                    Fill::Available => {
                        held = None; // Other uploads can use it.
                        return Poll::Pending;
                    }
                    Fill::Full => return Poll::Pending,
                },
            }
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    held.ok_or_else(|| ReceiveError::Body(HttpError::new(500, "the upload has no buffer")))
}

/// Receives and discards a body. Returns its length in bytes.
pub(in crate::files) async fn discard(body: &mut RequestBody) -> Result<u64, HttpError> {
    body.discard().await.map_err(body_failure)
}

fn body_error(error: io::Error) -> ReceiveError {
    ReceiveError::Body(body_failure(error))
}

/// The response to an incomplete or invalid body. The engine has put the reason into `error`.
pub(in crate::files) fn body_failure(error: io::Error) -> HttpError {
    let reject = error.get_ref().and_then(|inner| inner.downcast_ref());
    match reject {
        Some(&Reject { status, reason }) => HttpError::new(status, reason),
        None => INCOMPLETE,
    }
}

/// Polls two futures concurrently until both are complete, or the first one has failed: a client
/// that sends slowly learns at once that its bytes cannot be written. Returns the output of the
/// second one, or the error of the first one.
async fn unless_failed<E, B: Future>(
    a: impl Future<Output = Result<(), E>>,
    b: B,
) -> Result<B::Output, E> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut is_done, mut output) = (false, None);
    poll_fn(|cx| {
        if !is_done && let Poll::Ready(result) = a.as_mut().poll(cx) {
            if let Err(error) = result {
                return Poll::Ready(Err(error));
            }
            is_done = true;
        }
        if output.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            output = Some(value);
        }
        match output.take_if(|_| is_done) {
            Some(value) => Poll::Ready(Ok(value)),
            None => Poll::Pending,
        }
    })
    .await
}

/// Polls two futures concurrently until both are complete.
pub(in crate::files) async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut output_a, mut output_b) = (None, None);
    poll_fn(|cx| {
        if output_a.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            output_a = Some(value);
        }
        if output_b.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            output_b = Some(value);
        }
        if output_a.is_some() && output_b.is_some() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    match (output_a, output_b) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("both outputs are set"),
    }
}

impl Objects {
    /// The response to an error of an upload of `key`.
    pub(in crate::files) fn upload_failure(&self, error: ReceiveError, key: &Key) -> HttpError {
        match error {
            ReceiveError::Body(failure) => failure,
            ReceiveError::Store(error) => self.store_failure(error, Operation::Write, Some(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_budget_buffers_are_small() {
        let buffers = UploadBuffers::new(2 * 3 * OWN_BUFFER_BYTES, 2);
        let (first, bytes) = buffers.reserve_own(2 * OWN_BUFFER_BYTES);
        assert_eq!((first.is_some(), bytes), (true, 2 * OWN_BUFFER_BYTES));
        let (none, bytes) = buffers.reserve_own(2 * OWN_BUFFER_BYTES);
        assert_eq!((none.is_none(), bytes), (true, SMALL_BUFFER_BYTES));
        assert_eq!(buffers.reserve_own(100_000).1, 100_000);
        let (free, bytes) = buffers.reserve_own(5);
        assert_eq!((free.is_none(), bytes), (true, 5));
        drop(first);
        assert_eq!(
            buffers.reserve_own(2 * OWN_BUFFER_BYTES).1,
            2 * OWN_BUFFER_BYTES
        );
    }
}
