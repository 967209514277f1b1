//! Frames of HTTP/2 for the clients of this program: complete requests, requests that wait for
//! their end, with trailers, and that are taken back.

use std::io::{self, Read, Write};
use xtask::shell::Outcome;

/// The first bytes of a client (RFC 9113, section 3.4), and its empty SETTINGS.
pub(crate) const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The acknowledgement of the server's SETTINGS.
pub(crate) const ACKNOWLEDGED: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";

/// `POST /echo` without its end, as a block of HPACK: `:method: POST`, `:scheme: http`, and the
/// literals `:path` and `:authority`, which are not kept.
pub(crate) const POST_ECHO: &[u8] = b"\x83\x86\x04\x05/echo\x01\x01a";

/// The field `x-sum: 12345678` as a block of HPACK, which is not kept.
pub(crate) const TRAILERS: &[u8] = b"\0\x05x-sum\x0812345678";

/// `GET /` as a block of HPACK. From the static table come `:method: GET`, `:path: /` and `:scheme:
/// http`; the last field is `:authority: a`.
const GET: &[u8] = b"\x82\x84\x86\x01\x01a";

/// The types of frames.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;

/// The flag ACK of SETTINGS, and the others of HEADERS and DATA.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The error code CANCEL.
pub(crate) const CANCEL: u32 = 8;

/// The bytes before the payload of a frame.
pub(crate) const FRAME_HEAD_BYTES: usize = 9;

/// The status 200 in a head, from the static table.
const STATUS_200: u8 = 0x88;

/// The size 0 of the dynamic table.
const TABLE_OF_0: u8 = 0x20;

/// The most bytes of a frame that a server may send.
const FRAME_BYTES_MAX: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'a [u8],
}

impl Frame<'_> {
    /// Finds the frame that `bytes` begin with, and its length. `None` if it is not complete.
    ///
    /// # Errors
    /// It is longer than a client permits.
    pub(crate) fn first(bytes: &[u8]) -> io::Result<Option<(Frame<'_>, usize)>> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = payload_bytes(head)?;
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload,
        };
        Ok(Some((frame, FRAME_HEAD_BYTES + length)))
    }

    /// The number in a WINDOW_UPDATE.
    pub(crate) fn increment(&self) -> u32 {
        let number = self.payload.first_chunk().copied().unwrap_or_default();
        u32::from_be_bytes(number) & 0x7fff_ffff
    }
}

/// Adds a frame to `out`.
pub(crate) fn push(out: &mut Vec<u8>, (kind, flags): (u8, u8), stream: u32, payload: &[u8]) {
    let length = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Sends `GET /` on a new connection, and receives the response and all that follows from the begin
/// of a connection, so that it is idle afterwards. Fails if the status is not 200.
pub(crate) fn get_root(stream: &mut (impl Read + Write)) -> Outcome {
    begin(stream, &get(1)).map(drop)
}

/// `GET /` on a stream.
pub(crate) fn get(stream: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    push(&mut frame, (HEADERS, END_STREAM | END_HEADERS), stream, GET);
    frame
}

/// As [`get_root`], with any request on stream 1, as frames. Returns the content of the response.
pub(crate) fn begin(stream: &mut (impl Read + Write), request: &[u8]) -> Outcome<Vec<u8>> {
    let failed = |error: io::Error| error.to_string();
    stream
        .write_all(&[BEGIN, request].concat())
        .map_err(failed)?;
    let mut content = Vec::new();
    let (mut is_acknowledged, mut is_complete) = (false, false);
    while !(is_acknowledged && is_complete) {
        let bytes = receive(stream).map_err(failed)?;
        let frame = Frame::first(&bytes).map_err(failed)?;
        let (frame, _) = frame.ok_or("a frame is not complete")?;
        match frame.kind {
            SETTINGS if frame.flags & ACK != 0 => is_acknowledged = true,
            SETTINGS => stream.write_all(ACKNOWLEDGED).map_err(failed)?,
            HEADERS if !is_200(frame.payload) => return Err("the status is not 200".to_owned()),
            HEADERS => is_complete |= frame.flags & END_STREAM != 0,
            DATA => {
                content.extend_from_slice(frame.payload);
                is_complete |= frame.flags & END_STREAM != 0;
            }
            RST_STREAM | GOAWAY => return Err("the server has ended the stream".to_owned()),
            _ => {}
        }
    }
    Ok(content)
}

/// Whether a head begins with the status 200. nginx first sets the size of its table to 0.
pub(crate) fn is_200(head: &[u8]) -> bool {
    head.strip_prefix(&[TABLE_OF_0]).unwrap_or(head).first() == Some(&STATUS_200)
}

/// The bytes of the next frame.
fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; FRAME_HEAD_BYTES];
    stream.read_exact(&mut bytes)?;
    let length = payload_bytes(&bytes)?;
    bytes.resize(FRAME_HEAD_BYTES + length, 0);
    stream.read_exact(&mut bytes[FRAME_HEAD_BYTES..])?;
    Ok(bytes)
}

/// The length of the payload in the head of a frame. Fails if it is more than a client permits.
fn payload_bytes(head: &[u8]) -> io::Result<usize> {
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    match length <= FRAME_BYTES_MAX {
        true => Ok(length),
        false => Err(io::Error::other("a frame is too long")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends these bytes, and what it receives.
    struct Peer(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const SETTINGS_FRAME: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

    fn served(frames: &[&[u8]]) -> (Outcome, Vec<u8>, usize) {
        let mut peer = Peer(io::Cursor::new(frames.concat()), Vec::new());
        let done = get_root(&mut peer);
        let left = frames.concat().len() - peer.0.position() as usize;
        (done, peer.1, left)
    }

    #[test]
    fn a_response_and_the_begin_of_the_connection_are_received_whole() {
        let head = b"\0\0\x01\x01\x04\0\0\0\x01\x88";
        let data = b"\0\0\x02\0\x01\0\0\0\x01hi";
        let (done, sent, left) = served(&[SETTINGS_FRAME, head, data, ACKNOWLEDGED, b"rest"]);
        assert_eq!((done, left), (Ok(()), 4));
        assert_eq!(sent, [BEGIN, &get(1), ACKNOWLEDGED].concat());
        let (done, ..) = served(&[SETTINGS_FRAME, ACKNOWLEDGED, head]);
        assert!(done.is_err(), "the body is missing");
        let (done, ..) = served(&[SETTINGS_FRAME, head, data]);
        assert!(done.is_err(), "the acknowledgement is missing");
    }

    #[test]
    fn frames_are_found_when_they_are_whole() {
        let mut bytes = Vec::new();
        push(&mut bytes, (WINDOW_UPDATE, 0), 7, &[0x80, 0, 1, 0]);
        push(&mut bytes, (DATA, END_STREAM), 9, b"hi");
        for short in 0..13 {
            let none = Frame::first(&bytes[..short]).expect("short enough");
            assert!(none.is_none(), "{short}");
        }
        let (frame, length) = Frame::first(&bytes).expect("short").expect("whole");
        assert_eq!((frame.kind, frame.stream), (WINDOW_UPDATE, 7));
        assert_eq!((frame.increment(), length), (256, 13));
        let (frame, _) = Frame::first(&bytes[13..]).expect("short").expect("whole");
        let shown = (frame.kind, frame.flags, frame.stream, frame.payload);
        assert_eq!(shown, (DATA, END_STREAM, 9, &b"hi"[..]));
        assert!(Frame::first(&[0, 0x40, 1, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn another_status_is_an_error() {
        let found = b"\0\0\x02\x01\x05\0\0\0\x01\x20\x88";
        assert_eq!(served(&[found, ACKNOWLEDGED]).0, Ok(()));
        let missing = b"\0\0\x01\x01\x05\0\0\0\x01\x8d";
        assert!(served(&[missing, ACKNOWLEDGED]).0.is_err());
    }
}
