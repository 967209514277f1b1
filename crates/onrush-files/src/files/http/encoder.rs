//! An encoder of a content coding that takes its content in pieces.

use crate::files::http::codings::Coding;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};
use std::mem;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder as ZstdEncoder;

/// A level at which compression is worth the time for content that is sent once.
const GZIP_LEVEL: u32 = 5;
const ZSTD_LEVEL: i32 = 3;

/// The distance in which Zstandard finds repetitions, as a power of two. It determines the memory
/// of an encoder.
const ZSTD_WINDOW_LOG: u32 = 18;

/// Compresses content into memory.
pub(in crate::files) enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    /// The content has ended.
    Ended,
}

impl Encoder {
    /// An encoder for content of `bytes`. Without one for [`Coding::Brotli`].
    pub(in crate::files) fn new(coding: Coding, bytes: u64) -> io::Result<Encoder> {
        match coding {
            Coding::Gzip => {
                let level = Compression::new(GZIP_LEVEL);
                Ok(Encoder::Gzip(GzEncoder::new(Vec::new(), level)))
            }
            Coding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.set_pledged_src_size(Some(bytes))?;
                encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
                Ok(Encoder::Zstd(encoder))
            }
            Coding::Brotli => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The memory of an encoder for content of any size, in bytes, rounded up.
    pub(in crate::files) fn memory_bytes(coding: Coding) -> usize {
        match coding {
            Coding::Gzip => 320 << 10,
            Coding::Zstd | Coding::Brotli => 2 << 20,
        }
    }

    /// Takes a piece of the content, and returns what is ready. `is_last`: ends the content.
    pub(in crate::files) fn encode(&mut self, piece: &[u8], is_last: bool) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Gzip(encoder) => encoder.write_all(piece)?,
            Encoder::Zstd(encoder) => encoder.write_all(piece)?,
            Encoder::Ended => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        if is_last {
            return match mem::replace(self, Encoder::Ended) {
                Encoder::Gzip(encoder) => encoder.finish(),
                Encoder::Zstd(encoder) => encoder.finish(),
                Encoder::Ended => Ok(Vec::new()),
            };
        }
        Ok(match self {
            Encoder::Gzip(encoder) => mem::take(encoder.get_mut()),
            Encoder::Zstd(encoder) => mem::take(encoder.get_mut()),
            Encoder::Ended => Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn decode(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut content = Vec::new();
        let read = match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut content),
            _ => zstd::stream::read::Decoder::new(bytes)
                .expect("a decoder")
                .read_to_end(&mut content),
        };
        read.expect("valid");
        content
    }

    #[test]
    fn pieces_are_one_content() {
        let content: Vec<u8> = (0..300_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        for coding in [Coding::Gzip, Coding::Zstd] {
            for piece_bytes in [1000, 65_536, content.len()] {
                let mut encoder = Encoder::new(coding, content.len() as u64).expect("an encoder");
                let mut encoded = Vec::new();
                let mut left = content.len();
                for piece in content.chunks(piece_bytes) {
                    left -= piece.len();
                    encoded.extend(encoder.encode(piece, left == 0).expect("no error"));
                }
                assert!(encoded.len() < content.len() / 2, "{coding:?}");
                assert_eq!(decode(coding, &encoded), content, "{coding:?}");
                assert!(encoder.encode(b"x", true).is_err(), "it has ended");
            }
        }
        assert!(Encoder::new(Coding::Brotli, 1).is_err());
    }

    #[test]
    fn zstd_content_of_another_length_is_an_error() {
        let mut encoder = Encoder::new(Coding::Zstd, 10).expect("an encoder");
        assert!(encoder.encode(b"short", true).is_err());
    }
}
