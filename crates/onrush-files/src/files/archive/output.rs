//! Sends an archive, compressed or as it is.
//!
//! An [`OffloadEncoder`] compresses 256 KiB at a time. While the offload pool is busy, the archive
//! waits, and with it what reads the files.

use super::{Format, too_many};
use crate::files::http::http_error::HttpError;
use crate::shares::{Holder, Share, Shares};
use onrush::Bytes;
use onrush::body::BodySender;
use onrush::compression::{Encoder, OffloadEncoder, Then};
use std::io;
use std::mem;
use std::sync::Arc;

/// The bytes that are compressed at a time: some milliseconds.
const INPUT_BYTES: usize = 256 << 10;

/// The memory of the compression, with its input and output.
const STATE_BYTES: usize = 4 << 20;

/// Where an archive is sent.
pub(super) struct Output {
    sender: BodySender,
    compression: Option<Compression>,
}

struct Compression {
    encoder: OffloadEncoder,
    /// What is compressed next.
    input: Vec<Bytes>,
    input_bytes: usize,
    /// Its memory.
    _lease: Share,
}

impl Output {
    /// Fails with 429 or 503 if too many archives are being compressed. `shares`: their memory, and
    /// who gets it.
    pub(super) fn new(
        format: Format,
        sender: BodySender,
        shares: (&Arc<Shares>, Holder),
    ) -> Result<Output, HttpError> {
        let compression = match format {
            Format::TarZst => Some(Compression::new(shares)?),
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
        compression.input_bytes += bytes.len();
        compression.input.push(bytes);
        match compression.input_bytes < INPUT_BYTES {
            true => Ok(()),
            false => self.compress(Then::Continue).await,
        }
    }

    /// Sends what is left. No more bytes may follow but by [`Output::end`].
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.compress(Then::End).await
    }

    /// Compresses the input, if there is a compression. A client that leaves ends the wait.
    async fn compress(&mut self, then: Then) -> io::Result<()> {
        let Some(compression) = &mut self.compression else {
            return Ok(());
        };
        let input = mem::take(&mut compression.input);
        compression.input_bytes = 0;
        let encoding = compression.encoder.encode(&input, then);
        let encoded = self.sender.until_closed(encoding).await??;
        self.sender.send(encoded).await
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
    fn new((shares, holder): (&Arc<Shares>, Holder)) -> Result<Compression, HttpError> {
        Ok(Compression {
            encoder: OffloadEncoder::new(Encoder::zstd_file),
            input: Vec::new(),
            input_bytes: 0,
            _lease: shares.take(holder, STATE_BYTES).map_err(too_many)?,
        })
    }
}
