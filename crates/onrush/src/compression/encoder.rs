//! An encoder of a content coding that takes its content in pieces.

use super::codings::Coding;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fmt;
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

/// What follows a piece of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// More content. The encoder may keep some back, to compress it together with that.
    Continue,
    /// More content, later. The client can decode what the encoder has returned up to here.
    Flush,
    /// Nothing: the content has ended.
    End,
}

/// Compresses content into memory.
///
/// # Examples
/// ```
/// use onrush::compression::{Coding, Encoder, Then};
///
/// let mut encoder = Encoder::new(Coding::Gzip, None)?;
/// let mut encoded = encoder.encode(b"some ", Then::Flush)?;
/// encoded.extend(encoder.encode(b"text", Then::End)?);
/// assert_eq!(encoded[..2], [0x1f, 0x8b]); // RFC 1952 §2.3.1.
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Encoder(State);

enum State {
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Ended,
}

impl Encoder {
    /// An encoder for content of `bytes`, or of unknown length. Fails with `Unsupported` if there
    /// is none for this coding ([`Coding::has_encoder`]).
    pub fn new(coding: Coding, bytes: Option<u64>) -> io::Result<Encoder> {
        match coding {
            Coding::Gzip => {
                let level = Compression::new(GZIP_LEVEL);
                Ok(Encoder(State::Gzip(GzEncoder::new(Vec::new(), level))))
            }
            Coding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.set_pledged_src_size(bytes)?;
                encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG))?;
                Ok(Encoder(State::Zstd(encoder)))
            }
            Coding::Brotli => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// An encoder of a file in the format Zstandard (RFC 8878) that the client keeps, and not of a
    /// content coding: it ends with a checksum, and finds repetitions in the 2 MiB before. It uses
    /// about 3 MiB of memory.
    ///
    /// # Errors
    /// Those of the library, such as that memory is short.
    pub fn zstd_file() -> io::Result<Encoder> {
        let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
        encoder.include_checksum(true)?;
        Ok(Encoder(State::Zstd(encoder)))
    }

    /// The memory of an encoder for content of any size, in bytes, rounded up.
    pub fn memory_bytes(coding: Coding) -> usize {
        match coding {
            Coding::Gzip => 320 << 10,
            Coding::Zstd | Coding::Brotli => 2 << 20,
        }
    }

    /// Takes a piece of the content, and returns what is ready of the compressed content.
    ///
    /// Fails after [`Then::End`], and at the end of content of another length than was said.
    pub fn encode(&mut self, piece: &[u8], then: Then) -> io::Result<Vec<u8>> {
        self.write(piece)?;
        match then {
            Then::Continue => self.take(),
            Then::Flush => {
                match &mut self.0 {
                    State::Gzip(encoder) => encoder.flush()?,
                    State::Zstd(encoder) => encoder.flush()?,
                    State::Ended => {}
                }
                self.take()
            }
            Then::End => match mem::replace(&mut self.0, State::Ended) {
                State::Gzip(encoder) => encoder.finish(),
                State::Zstd(encoder) => encoder.finish(),
                State::Ended => Ok(Vec::new()),
            },
        }
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            State::Gzip(encoder) => encoder.write_all(piece),
            State::Zstd(encoder) => encoder.write_all(piece),
            State::Ended => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn take(&mut self) -> io::Result<Vec<u8>> {
        Ok(match &mut self.0 {
            State::Gzip(encoder) => mem::take(encoder.get_mut()),
            State::Zstd(encoder) => mem::take(encoder.get_mut()),
            State::Ended => Vec::new(),
        })
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Gzip(_) => "Encoder(gzip)",
            State::Zstd(_) => "Encoder(zstd)",
            State::Ended => "Encoder(ended)",
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
                let mut encoder =
                    Encoder::new(coding, Some(content.len() as u64)).expect("an encoder");
                let mut encoded = Vec::new();
                let mut left = content.len();
                for piece in content.chunks(piece_bytes) {
                    left -= piece.len();
                    let then = match left {
                        0 => Then::End,
                        _ => Then::Continue,
                    };
                    encoded.extend(encoder.encode(piece, then).expect("no error"));
                }
                assert!(encoded.len() < content.len() / 2, "{coding:?}");
                assert_eq!(decode(coding, &encoded), content, "{coding:?}");
                assert!(encoder.encode(b"x", Then::End).is_err(), "it has ended");
            }
        }
        for coding in Coding::ALL {
            let made = Encoder::new(coding, None).is_ok();
            assert_eq!(made, coding.has_encoder(), "{coding:?}");
        }
    }

    #[test]
    fn damage_of_a_zstd_file_is_found() {
        // Noise is stored as it is, so a changed byte is not noticed but by the checksum.
        let mut state = 1u64;
        let mut noise = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        let content: Vec<u8> = (0..10_000).map(|_| noise()).collect();
        let mut encoder = Encoder::zstd_file().expect("an encoder");
        let mut encoded = encoder.encode(&content, Then::End).expect("no error");
        assert_eq!(decode(Coding::Zstd, &encoded), content);
        let middle = encoded.len() / 2;
        encoded[middle] ^= 1;
        let mut decoder = zstd::stream::read::Decoder::new(&encoded[..]).expect("a decoder");
        assert!(decoder.read_to_end(&mut Vec::new()).is_err());
    }

    #[test]
    fn zstd_content_of_another_length_is_an_error() {
        let mut encoder = Encoder::new(Coding::Zstd, Some(10)).expect("an encoder");
        assert!(encoder.encode(b"short", Then::End).is_err());
    }

    /// The decoder of a client gets everything that was flushed, before the content has ended.
    #[test]
    fn what_was_flushed_can_be_decoded() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let mut encoder = Encoder::new(coding, None).expect("an encoder");
            let (mut encoded, mut sent) = (Vec::new(), Vec::new());
            for number in 0..50u32 {
                let piece = format!("piece {number} ").repeat(number as usize * 20);
                sent.extend_from_slice(piece.as_bytes());
                encoded.extend(
                    encoder
                        .encode(piece.as_bytes(), Then::Flush)
                        .expect("no error"),
                );
                assert_eq!(
                    decode_start(coding, &encoded, sent.len()),
                    sent,
                    "{coding:?}"
                );
            }
        }
    }

    /// The first bytes of content whose end is missing.
    fn decode_start(coding: Coding, bytes: &[u8], count: usize) -> Vec<u8> {
        let mut content = vec![0; count];
        let read = match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_exact(&mut content),
            _ => zstd::stream::read::Decoder::new(bytes)
                .expect("a decoder")
                .read_exact(&mut content),
        };
        read.expect("what was flushed");
        content
    }
}
