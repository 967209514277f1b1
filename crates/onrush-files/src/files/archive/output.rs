//! Sends an archive, compressed or as it is.
//!
//! Compression is CPU work, so the offload pool does it: a job for each 256 KiB, one at a time. If
//! the pool is overloaded, the archive waits and tries again.

use super::{BUSY_TRIES, BUSY_WAIT, Format, too_many};
use crate::files::http::http_error::HttpError;
use crate::shares::{Holder, Share, Shares};
use onrush::body::BodySender;
use onrush::offload::OffloadError;
use onrush::{Bytes, WorkerHandle};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zstd::stream::write::Encoder;

/// The bytes that are compressed at a time: some milliseconds.
const INPUT_BYTES: usize = 256 << 10;

/// Near the default of the program `zstd`. Higher levels are slower than most networks.
const LEVEL: i32 = 3;

/// The memory of the compression at this level, with its input and output.
const STATE_BYTES: usize = 4 << 20;

/// Where an archive is sent.
pub(super) struct Output {
    sender: BodySender,
    compression: Option<Compression>,
}

struct Compression {
    worker: WorkerHandle,
    /// Bytes that the next job compresses.
    input: Vec<u8>,
    /// Shared with the job, so that it remains if a job is refused.
    state: Arc<Mutex<OutputState>>,
    /// Its memory.
    _lease: Share,
}

struct OutputState {
    /// Empty between two jobs.
    input: Vec<u8>,
    /// `None` after the end.
    encoder: Option<Encoder<'static, Vec<u8>>>,
}

impl Output {
    /// Fails with 429 or 503 if too many archives are being compressed. `shares`: their memory, and
    /// who gets it.
    pub(super) fn new(
        format: Format,
        sender: BodySender,
        worker: &WorkerHandle,
        shares: (&Arc<Shares>, Holder),
    ) -> Result<Output, HttpError> {
        let compression = match format {
            Format::TarZst => Some(Compression::new(worker, shares)?),
            Format::Tar | Format::Zip => None,
        };
        Ok(Output {
            sender,
            compression,
        })
    }

    /// Sends the next bytes. Fails if the client has disconnected.
    pub(super) async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        let Some(compression) = &mut self.compression else {
            return self.sender.send(bytes).await;
        };
        compression.input.extend_from_slice(&bytes);
        if compression.input.len() < INPUT_BYTES {
            return Ok(());
        }
        let output = compression.run(false).await?;
        self.sender.send(output).await
    }

    /// Sends what is left. No more bytes may follow but by [`Output::end`].
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        match &mut self.compression {
            Some(compression) => {
                let output = compression.run(true).await?;
                self.sender.send(output).await
            }
            None => Ok(()),
        }
    }

    /// Ends the archive, of which all was sent.
    pub(super) fn end(self) {
        self.sender.finish();
    }

    /// Ends with an error, so that the client does not take a part for the whole.
    pub(super) fn abort(self, error: io::Error) {
        self.sender.abort(error);
    }
}

impl Compression {
    fn new(
        worker: &WorkerHandle,
        (shares, holder): (&Arc<Shares>, Holder),
    ) -> Result<Compression, HttpError> {
        let lease = shares.take(holder, STATE_BYTES).map_err(too_many)?;
        let failed = |_| HttpError::new(500, "the archive cannot be compressed");
        let mut encoder = Encoder::new(Vec::new(), LEVEL).map_err(failed)?;
        encoder.include_checksum(true).map_err(failed)?;
        let state = OutputState {
            input: Vec::new(),
            encoder: Some(encoder),
        };
        Ok(Compression {
            worker: worker.clone(),
            input: Vec::new(),
            state: Arc::new(Mutex::new(state)),
            _lease: lease,
        })
    }

    /// Compresses the input. The output may be empty, unless this is the end.
    async fn run(&mut self, is_end: bool) -> io::Result<Bytes> {
        std::mem::swap(&mut self.input, &mut lock(&self.state).input);
        for _ in 0..BUSY_TRIES {
            let state = self.state.clone();
            let job = self.worker.offload(move || lock(&state).compress(is_end));
            match job.await {
                Ok(output) => return output.map(Bytes::from),
                Err(OffloadError::Panicked) => break,
                Err(OffloadError::Full | OffloadError::TimedOut) => {
                    self.worker.sleep(BUSY_WAIT).await;
                }
            }
        }
        Err(io::Error::other("the archive cannot be compressed"))
    }
}

/// No job runs while the task uses the state, so nothing waits for this lock.
fn lock(state: &Mutex<OutputState>) -> MutexGuard<'_, OutputState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OutputState {
    fn compress(&mut self, is_end: bool) -> io::Result<Vec<u8>> {
        let Some(mut encoder) = self.encoder.take() else {
            return Err(io::Error::other("the archive has ended"));
        };
        encoder.write_all(&self.input)?;
        self.input.clear();
        if is_end {
            return encoder.finish();
        }
        let output = std::mem::take(encoder.get_mut());
        self.encoder = Some(encoder);
        Ok(output)
    }
}
