//! One request over HTTP/2, as a client that keeps its connection open afterwards.

use std::io::{self, Read, Write};
use xtask::shell::Outcome;

/// The first bytes of a client (RFC 9113, section 3.4), and its empty SETTINGS.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// `GET /` on stream 1 as a complete HEADERS frame. From the static table of HPACK come `:method:
/// GET`, `:path: /` and `:scheme: http`; the last field is `:authority: a`.
const GET_ROOT: &[u8] = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x01\x01a";

/// The acknowledgement of the server's SETTINGS.
const ACKNOWLEDGED: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// The flag ACK of SETTINGS, and END_STREAM of HEADERS and DATA.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;

/// The status 200 in a head, from the static table.
const STATUS_200: u8 = 0x88;

/// The size 0 of the dynamic table.
const TABLE_OF_0: u8 = 0x20;

/// The most bytes of a frame that a server may send.
const FRAME_BYTES_MAX: usize = 16_384;

struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

/// Sends `GET /` on a new connection, and receives the response and all that follows from the begin
/// of a connection, so that it is idle afterwards. Fails if the status is not 200.
pub(crate) fn get_root(stream: &mut (impl Read + Write)) -> Outcome {
    let failed = |error: io::Error| error.to_string();
    stream
        .write_all(&[BEGIN, GET_ROOT].concat())
        .map_err(failed)?;
    let (mut is_acknowledged, mut is_complete) = (false, false);
    while !(is_acknowledged && is_complete) {
        let frame = receive(stream).map_err(failed)?;
        match frame.kind {
            SETTINGS if frame.flags & ACK != 0 => is_acknowledged = true,
            SETTINGS => stream.write_all(ACKNOWLEDGED).map_err(failed)?,
            HEADERS if !is_200(&frame.payload) => return Err("the status is not 200".to_owned()),
            HEADERS | DATA => is_complete |= frame.flags & END_STREAM != 0,
            _ => {}
        }
    }
    Ok(())
}

/// Whether a head begins with the status 200. nginx first sets the size of its table to 0.
fn is_200(head: &[u8]) -> bool {
    head.strip_prefix(&[TABLE_OF_0]).unwrap_or(head).first() == Some(&STATUS_200)
}

fn receive(stream: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Frame {
        kind: head[3],
        flags: head[4],
        payload,
    })
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
        assert_eq!(sent, [BEGIN, GET_ROOT, ACKNOWLEDGED].concat());
        let (done, ..) = served(&[SETTINGS_FRAME, ACKNOWLEDGED, head]);
        assert!(done.is_err(), "the body is missing");
        let (done, ..) = served(&[SETTINGS_FRAME, head, data]);
        assert!(done.is_err(), "the acknowledgement is missing");
    }

    #[test]
    fn another_status_is_an_error() {
        let found = b"\0\0\x02\x01\x05\0\0\0\x01\x20\x88";
        assert_eq!(served(&[found, ACKNOWLEDGED]).0, Ok(()));
        let missing = b"\0\0\x01\x01\x05\0\0\0\x01\x8d";
        assert!(served(&[missing, ACKNOWLEDGED]).0.is_err());
    }
}
