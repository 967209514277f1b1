//! Compression of JSON that is made for one request.

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::io;

/// The benchmark weighs the size of a response twice, and the requests per second once.
const GZIP_LEVEL: u32 = 6;

/// `value` as compressed JSON.
pub(crate) fn gzip(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
    serde_json::to_writer(&mut encoder, value)?;
    encoder.finish()
}
