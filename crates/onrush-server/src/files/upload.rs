//! Receiving bodies of any length in memory of a bounded size.
//!
//! A long upload takes one of the shared [`Buffers`] when bytes for it have come, and holds it
//! until they are written; the next is filled meanwhile if there is one. An upload that is short,
//! or of unknown length, has memory of its own to collect its bytes in, so that it is not written
//! in crumbs: as much as a budget for all uploads grants, beyond that a little, and then it is
//! merely slower.
//!
//! This module must not know keys or conditions.

use super::budget::{Budget, Lease};
use super::buffers::{Buffers, Held, User};
use super::digest::Digests;
use super::failure::Failure;
use onrush::RequestBody;
use onrush_rt::coop;
use onrush_store::{StoreError, Upload};
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};

/// Bodies longer than this use the shared buffers. The size of an upload's own ones.
const OWN_BYTES: usize = 256 * 1024;
/// The size of an upload's own buffers when the budget is used up.
const SMALL_BYTES: usize = 16 * 1024;

/// The memory of all uploads.
#[derive(Debug)]
pub(super) struct Memory {
    shared: Arc<Buffers>,
    own: Arc<Budget>,
}

impl Memory {
    /// Buffers of about `bytes_max` in all, of which uploads share `per_core` for each core.
    pub(super) fn new(bytes_max: usize, per_core: usize) -> Memory {
        Memory {
            shared: Buffers::for_all_cores(per_core, bytes_max / 2),
            own: Budget::new(bytes_max / 2),
        }
    }

    /// `wanted` bytes, if as many are left of the budget; otherwise a little.
    fn own(&self, wanted: usize) -> (Option<Lease>, usize) {
        if wanted <= SMALL_BYTES {
            return (None, wanted);
        }
        match self.own.take(wanted) {
            Some(lease) => (Some(lease), wanted),
            None => (None, SMALL_BYTES),
        }
    }
}

/// Why a body could not be received into an upload.
pub(super) enum Broken {
    /// The response says why: the body did not come whole.
    Body(Failure),
    Store(StoreError),
}

/// Receives a body into `upload`, which is given back when all of it is there, and into `digests`.
pub(super) async fn store(
    body: &mut RequestBody,
    length: Option<u64>,
    upload: Box<dyn Upload>,
    digests: &mut Digests,
    memory: &Memory,
) -> Result<Box<dyn Upload>, Broken> {
    match length {
        Some(length) if length <= OWN_BYTES as u64 => {
            let (_lease, bytes) = memory.own(length as usize);
            in_turn(body, upload, digests, bytes.max(1)).await
        }
        Some(_) => at_once(body, upload, digests, memory.shared.user(), Fill::There).await,
        None => {
            let (_lease, bytes) = memory.own(2 * OWN_BYTES);
            let own = Buffers::new(2, bytes / 2);
            at_once(body, upload, digests, own.user(), Fill::Whole).await
        }
    }
}

/// Fills a buffer of `bytes` and writes it, until all is written: for what fits into one.
async fn in_turn(
    body: &mut RequestBody,
    mut upload: Box<dyn Upload>,
    digests: &mut Digests,
    bytes: usize,
) -> Result<Box<dyn Upload>, Broken> {
    let mut buffer = Vec::with_capacity(bytes);
    loop {
        body.fill_whole(&mut buffer).await.map_err(interrupted)?;
        if buffer.is_empty() {
            return Ok(upload);
        }
        digests.update(&buffer).await;
        buffer = upload.write(buffer).await.map_err(Broken::Store)?;
        if body.remaining() == Some(0) {
            return Ok(upload);
        }
    }
}

/// Fills one buffer while another is written.
async fn at_once(
    body: &mut RequestBody,
    mut upload: Box<dyn Upload>,
    digests: &mut Digests,
    buffers: User,
    how: Fill,
) -> Result<Box<dyn Upload>, Broken> {
    let mut full = fill(body, &buffers, how).await?;
    while !full.bytes.is_empty() {
        let write = async {
            digests.update(&full.bytes).await;
            full.bytes = upload.write(mem::take(&mut full.bytes)).await?;
            drop(full); // Now, and not when more has come.
            Ok(())
        };
        if body.remaining() == Some(0) {
            write.await.map_err(Broken::Store)?;
            break;
        }
        let (written, filled) = both(write, fill(body, &buffers, how)).await;
        written.map_err(Broken::Store)?;
        full = filled?;
    }
    Ok(upload)
}

/// How much a buffer is filled.
#[derive(Clone, Copy)]
enum Fill {
    /// With what is there, as soon as that is much or all.
    There,
    /// To its end, however long it takes.
    Whole,
}

/// A buffer with the next bytes of the body, without any at its end.
async fn fill(body: &mut RequestBody, buffers: &User, how: Fill) -> Result<Held, Broken> {
    let mut held: Option<Held> = None;
    poll_fn(|cx| {
        let buffer = match &mut held {
            Some(held) => held,
            None => held.insert(ready!(buffers.poll_take(cx.waker()))),
        };
        while buffer.bytes.len() < buffer.bytes.capacity() {
            match body.poll_fill_whole(cx, &mut buffer.bytes) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(interrupted(error))),
                // The budget of this poll is used up. The upload keeps its buffer for the next
                // iteration: to alternate between uploads costs 15 % of the CPU, because the
                // buffers leave the processor's cache and the clients are woken more often.
                // The write or the digests may have used it up, and the client may be silent: the
                // task is woken, so that the next poll tells, and no silent client keeps a buffer.
                Poll::Pending if coop::is_exhausted() => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => match how {
                    Fill::There if !buffer.bytes.is_empty() => break,
                    Fill::There => {
                        held = None; // Others have use for it.
                        return Poll::Pending;
                    }
                    Fill::Whole => return Poll::Pending,
                },
            }
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    held.ok_or_else(|| Broken::Body(Failure::new(500, "no buffer")))
}

/// Receives a body and forgets it; gives how many bytes there were.
pub(super) async fn discard(body: &mut RequestBody) -> Result<u64, Failure> {
    body.discard().await.map_err(broken)
}

fn interrupted(error: io::Error) -> Broken {
    Broken::Body(broken(error))
}

/// The answer to a body that did not come whole. The engine knows better what was wrong with its
/// framing and outranks this.
fn broken(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::new(408, "the body took too long"),
        io::ErrorKind::FileTooLarge => Failure::new(413, "the body is too large"),
        _ => Failure::new(400, "the body did not come whole"),
    }
}

/// Waits for two futures that make progress side by side.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    poll_fn(|cx| {
        if of_a.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            of_a = Some(value);
        }
        if of_b.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            of_b = Some(value);
        }
        if of_a.is_some() && of_b.is_some() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    match (of_a, of_b) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("both are there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_budget_buffers_are_small() {
        let memory = Memory::new(2 * 3 * OWN_BYTES, 2);
        let (first, bytes) = memory.own(2 * OWN_BYTES);
        assert_eq!((first.is_some(), bytes), (true, 2 * OWN_BYTES));
        let (none, bytes) = memory.own(2 * OWN_BYTES);
        assert_eq!((none.is_none(), bytes), (true, SMALL_BYTES));
        assert_eq!(memory.own(100_000).1, 100_000);
        let (free, bytes) = memory.own(5);
        assert_eq!((free.is_none(), bytes), (true, 5));
        drop(first);
        assert_eq!(memory.own(2 * OWN_BYTES).1, 2 * OWN_BYTES);
    }
}
