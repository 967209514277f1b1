//! The rules of the profile `echo-ws`, with a client that makes and reads frames itself.

use crate::arena::{on_each_driver, request, response};
use std::io::{Read, Write};
use std::net::TcpStream;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The handshake of RFC 6455 §1.3, whose answer is known.
const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";
const ACCEPTED: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A whole frame with a mask (RFC 6455 §5.2).
fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | kind];
    match u16::try_from(content.len()).unwrap() {
        short @ ..126 => frame.push(0x80 | short as u8),
        long => {
            frame.push(0x80 | 126);
            frame.extend(long.to_be_bytes());
        }
    }
    let mask: [u8; 4] = fastrand::u32(..).to_be_bytes();
    frame.extend(mask);
    let masked = content.iter().zip(mask.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    frame
}

/// The next frame of the server, which has no mask.
fn next(client: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    client.read_exact(&mut head).unwrap();
    assert_eq!(
        head[0] & 0xf0,
        0x80,
        "the frame is the only one of its message"
    );
    let length = match head[1] {
        short @ ..126 => short.into(),
        126 => {
            let mut length = [0; 2];
            client.read_exact(&mut length).unwrap();
            u16::from_be_bytes(length).into()
        }
        other => panic!("a length of {other}"),
    };
    let mut content = vec![0; length];
    client.read_exact(&mut content).unwrap();
    (head[0] & 0x0f, content)
}

/// Sends the handshake, checks the response, and returns the connection behind it.
fn upgraded(mut client: TcpStream) -> TcpStream {
    client.write_all(HANDSHAKE.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    let accepted = format!("\r\nsec-websocket-accept: {}\r\n", ACCEPTED.to_lowercase());
    assert!(head.contains(&accepted), "{head}");
    client
}

#[test]
fn messages_return_in_order_and_of_their_kind() {
    on_each_driver(|arena| {
        let mut client = upgraded(arena.connect());
        let bytes: Vec<u8> = (0..256).map(|_| fastrand::u8(..)).collect();
        let long = vec![b'a'; 40_000];
        for (kind, content) in [(TEXT, &b"hello"[..]), (BINARY, &bytes), (TEXT, &long)] {
            client.write_all(&frame(kind, content)).unwrap();
            assert!(next(&mut client) == (kind, content.to_vec()));
        }
        let burst = (0..5).map(|number| format!("message {number}"));
        let burst: Vec<String> = burst.collect();
        let sent = burst.iter().flat_map(|text| frame(TEXT, text.as_bytes()));
        client.write_all(&sent.collect::<Vec<u8>>()).unwrap();
        for text in burst {
            assert_eq!(next(&mut client), (TEXT, text.into_bytes()));
        }
        client.write_all(&frame(PING, b"are you there")).unwrap();
        assert_eq!(next(&mut client), (PONG, b"are you there".to_vec()));
    });
}

#[test]
fn a_frame_may_arrive_byte_by_byte() {
    on_each_driver(|arena| {
        let mut client = upgraded(arena.connect());
        for byte in frame(TEXT, b"slow") {
            client.write_all(&[byte]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!(next(&mut client), (TEXT, b"slow".to_vec()));
    });
}

#[test]
fn a_close_is_answered_and_the_connection_ends() {
    on_each_driver(|arena| {
        let mut client = upgraded(arena.connect());
        let normal = [&1000_u16.to_be_bytes()[..], b"done"].concat();
        client.write_all(&frame(CLOSE, &normal)).unwrap();
        let (kind, content) = next(&mut client);
        assert_eq!((kind, &content[..2]), (CLOSE, &1000_u16.to_be_bytes()[..]));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        // The server still accepts others.
        let mut other = upgraded(arena.connect());
        other.write_all(&frame(TEXT, b"health")).unwrap();
        assert_eq!(next(&mut other), (TEXT, b"health".to_vec()));
    });
}

#[test]
fn a_violation_of_the_protocol_ends_the_connection() {
    on_each_driver(|arena| {
        let mut client = upgraded(arena.connect());
        // Frames of a client have a mask (RFC 6455 §5.1).
        client.write_all(&[0x80 | TEXT, 2, b'n', b'o']).unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(!received.windows(2).any(|two| two == b"no"), "{received:?}");
    });
}

#[test]
fn a_request_that_is_no_handshake_is_refused() {
    on_each_driver(|arena| {
        let reply = arena.get("/ws", "");
        assert_eq!(reply.status, 426);
        assert_eq!(reply.field("sec-websocket-version"), Some("13"));
        let other = HANDSHAKE.replace("Version: 13", "Version: 8");
        let other = other.replace("Connection: Upgrade", "Connection: close, Upgrade");
        let mut client = arena.connect();
        client.write_all(other.as_bytes()).unwrap();
        assert_eq!(response(client).status, 426);
        let sent = request("POST", "/ws", "Content-Length: 0\r\n", b"");
        assert_eq!(arena.ask(&[sent]).status, 405);
    });
}
