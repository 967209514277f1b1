//! An encoder whose work the offload pool does.

use super::encoder::{Encoder, Then};
use crate::offload::OffloadError;
use crate::worker::WorkerHandle;
use bytes::Bytes;
use onrush_rt::coop;
use std::fmt;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The maximum number of bytes that a worker compresses at once. With a new encoder it takes up to
/// 50 µs, and a job would cost a few microseconds and two wake-ups.
const INLINE_BYTES: usize = 8 * 1024;

/// A byte that the worker compresses costs as much as this many that it moves.
const INLINE_COST: usize = 16;

/// For how long a piece is offered to a pool that refuses it, and the time between two attempts.
/// Then the worker compresses it.
const BUSY_MAX: Duration = Duration::from_millis(500);
const BUSY_WAIT: Duration = Duration::from_millis(50);

/// An [`Encoder`] that delays no other request of its worker, for a response that is compressed
/// while it is sent.
///
/// The worker compresses up to 8 KiB at once; more is a job of the [offload](crate::offload())
/// pool. A pool that is busy must not cut off a response that has begun, so
/// [`OffloadEncoder::encode`] offers it a piece for half a second, in which the response waits as
/// it does for a slow client. Then the worker compresses the piece, 8 KiB at a time between other
/// work.
///
/// The caller keeps a piece until it is encoded, so memory does not grow while the pool is busy. A
/// future that is dropped withdraws its job. It is not known then whether the piece is a part of
/// the content, so drop the encoder as well.
///
/// # Examples
/// ```
/// use onrush::compression::{Coding, Encoder, OffloadEncoder, Then};
/// use onrush::{Body, Bytes, Limits, Request, Response, sim::Simulation};
///
/// async fn numbers(request: Request) -> Response {
///     let (mut sender, body) = Body::channel(64 * 1024);
///     let task = request.worker().spawn(async move {
///         let mut encoder = OffloadEncoder::new(|| Encoder::new(Coding::Gzip, None));
///         for page in 0..10 {
///             let lines: String = (0..10_000).map(|line| format!("{page} {line}\n")).collect();
///             let lines = [Bytes::from(lines)];
///             let encoding = encoder.encode(&lines, Then::Continue);
///             // A client that leaves ends the wait for the pool.
///             let encoded = sender.until_closed(encoding).await??;
///             sender.send(encoded).await?;
///         }
///         sender.send(encoder.encode(&[], Then::End).await?).await?;
///         sender.finish();
///         std::io::Result::Ok(())
///     });
///     task.detach();
///     Response::text(body).with_header("Content-Encoding", "gzip")
/// }
/// # let mut sim = Simulation::new(1, &numbers, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
/// # let mut response = Vec::new();
/// # for _ in 0..1000 {
/// #     sim.advance(std::time::Duration::from_millis(10));
/// #     response.extend(client.receive()?);
/// # }
/// # assert!(response.ends_with(b"\r\n0\r\n\r\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct OffloadEncoder {
    state: Arc<Mutex<State>>,
    /// What the encoder has taken since it was flushed.
    unflushed_bytes: usize,
}

type Make = Box<dyn FnOnce() -> io::Result<Encoder> + Send>;

enum State {
    /// A response that has not begun needs no memory.
    Unmade(Make),
    Made(Box<Encoder>),
    /// A job has it, or has lost it, or it has failed.
    Absent,
}

impl OffloadEncoder {
    /// The encoder that `make` returns, which is called with the first piece, where that is
    /// compressed.
    pub fn new(make: impl FnOnce() -> io::Result<Encoder> + Send + 'static) -> OffloadEncoder {
        OffloadEncoder {
            state: Arc::new(Mutex::new(State::Unmade(Box::new(make)))),
            unflushed_bytes: 0,
        }
    }

    /// Takes `pieces` of the content, in order, and returns what is ready of the compressed
    /// content. Waits while the pool is busy, and does not fail because of it.
    ///
    /// # Errors
    /// Those of [`Encoder::encode`] and of the function that makes the encoder; that the job has
    /// panicked; that the calling code does not run on a worker.
    pub async fn encode(&mut self, pieces: &[Bytes], then: Then) -> io::Result<Vec<u8>> {
        if !self.needs_job(pieces) {
            return self.try_encode(pieces, then).await;
        }
        let worker = current_worker()?;
        let begin_ms = worker.now_ms();
        loop {
            match self.try_encode(pieces, then).await {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                result => return result,
            }
            if Duration::from_millis(worker.now_ms() - begin_ms) >= BUSY_MAX {
                return self.encode_here(&worker, pieces, then).await;
            }
            worker.sleep(BUSY_WAIT).await;
        }
    }

    /// As [`OffloadEncoder::encode`], but fails with `ResourceBusy` if the pool refuses the job.
    /// The encoder is as before then.
    pub async fn try_encode(&mut self, pieces: &[Bytes], then: Then) -> io::Result<Vec<u8>> {
        let encoded = match self.needs_job(pieces) {
            true => self.run_job(pieces, then).await?,
            false => {
                coop::spend(self.bytes_with(pieces) * INLINE_COST);
                encode_all(&self.state, pieces, then)?
            }
        };
        self.unflushed_bytes = match then {
            Then::Continue => self.bytes_with(pieces),
            Then::Flush | Then::End => 0,
        };
        Ok(encoded)
    }

    /// Bytes that the encoder has taken since it was flushed. It may have kept them back.
    pub fn unflushed_bytes(&self) -> usize {
        self.unflushed_bytes
    }

    /// Whether the pool would get these pieces. The encoder may have kept back what came before
    /// them, and compress it now.
    pub(super) fn needs_job(&self, pieces: &[Bytes]) -> bool {
        self.bytes_with(pieces) > INLINE_BYTES
    }

    fn bytes_with(&self, pieces: &[Bytes]) -> usize {
        self.unflushed_bytes + pieces.iter().map(Bytes::len).sum::<usize>()
    }

    async fn run_job(&self, pieces: &[Bytes], then: Then) -> io::Result<Vec<u8>> {
        let (state, pieces) = (self.state.clone(), pieces.to_vec());
        let job = current_worker()?.offload(move || encode_all(&state, &pieces, then));
        job.await.unwrap_or_else(|error| {
            let kind = match error {
                OffloadError::Full | OffloadError::TimedOut => io::ErrorKind::ResourceBusy,
                OffloadError::Panicked => io::ErrorKind::Other,
            };
            Err(io::Error::new(kind, error))
        })
    }

    /// Compresses on the worker, which does something else between two parts. Each part is flushed,
    /// because Zstandard keeps content back until it has 128 KiB and compresses all of it at once,
    /// which takes a millisecond. The result is 3 % larger.
    async fn encode_here(
        &mut self,
        worker: &WorkerHandle,
        pieces: &[Bytes],
        then: Then,
    ) -> io::Result<Vec<u8>> {
        let mut encoded = Vec::new();
        for piece in pieces {
            for part in piece.chunks(INLINE_BYTES) {
                coop::spend(part.len() * INLINE_COST);
                let part = piece.slice_ref(part);
                encoded.extend(encode_all(&self.state, &[part], Then::Flush)?);
                worker.yield_now().await;
            }
        }
        encoded.extend(encode_all(&self.state, &[], then)?);
        self.unflushed_bytes = 0;
        Ok(encoded)
    }
}

impl fmt::Debug for OffloadEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffloadEncoder")
            .field("unflushed_bytes", &self.unflushed_bytes)
            .finish_non_exhaustive()
    }
}

pub(super) fn current_worker() -> io::Result<WorkerHandle> {
    WorkerHandle::current().ok_or_else(|| io::Error::other("a response is sent by its worker"))
}

/// Nothing holds the lock while it compresses, so a worker never waits for it.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn encode_all(state: &Mutex<State>, pieces: &[Bytes], then: Then) -> io::Result<Vec<u8>> {
    let taken = mem::replace(&mut *lock(state), State::Absent);
    let mut encoder = match taken {
        State::Unmade(make) => Box::new(make()?),
        State::Made(encoder) => encoder,
        State::Absent => return Err(io::Error::other("the encoder has failed")),
    };
    let (last, others) = match pieces {
        [others @ .., last] => (&last[..], others),
        [] => (&[][..], &[][..]),
    };
    let mut encoded = Vec::new();
    for piece in others {
        encoded.extend(encoder.encode(piece, Then::Continue)?);
    }
    encoded.extend(encoder.encode(last, then)?);
    *lock(state) = State::Made(encoder);
    Ok(encoded)
}
