//! Requests that become frames, and frames that become responses.

use super::*;
use crate::http2::{flag, frame, kind};
use onrush_proto::http2::frame::PREFACE;
use onrush_proto::http2::hpack::{Decoder, Encoder, Indexing};

/// The frames that a gateway sends, after those that begin a connection, as texts.
fn sent(gateway: &mut Gateway, decoder: &mut Decoder) -> Vec<String> {
    let out = gateway.take_out();
    let mut rest = out.strip_prefix(&PREFACE[..]).unwrap_or(&out);
    let mut frames = Vec::new();
    while let Some((head, more)) = rest.split_first_chunk::<9>() {
        let [a, b, c, kind, flags, .., stream] = *head;
        let (payload, more) = more.split_at(u32::from_be_bytes([0, a, b, c]) as usize);
        rest = more;
        let ends = if flags & flag::END_STREAM != 0 {
            " ends"
        } else {
            ""
        };
        frames.push(match kind {
            kind::HEADERS => {
                let mut text = format!("{stream}");
                let each = |name: &[u8], value: &[u8]| {
                    let (name, value) = (name.escape_ascii(), value.escape_ascii());
                    text.push_str(&format!(" {name}={value}"));
                };
                decoder.decode(payload, each).expect("a block");
                text + ends
            }
            kind::DATA => format!("{stream} {}{ends}", payload.len()),
            kind::RST_STREAM => format!("{stream} reset"),
            _ => continue,
        });
    }
    frames
}

fn head(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut encoder, mut block) = (Encoder::new(), Vec::new());
    for (name, value) in fields {
        encoder.field(
            name.as_bytes(),
            value.as_bytes(),
            Indexing::Once,
            &mut block,
        );
    }
    frame(kind::HEADERS, flags | flag::END_HEADERS, stream, &block)
}

fn grant(stream: u32, bytes: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

fn received(gateway: &mut Gateway) -> String {
    String::from_utf8(gateway.take_received()).expect("text")
}

#[test]
fn requests_become_frames_wherever_they_are_split() {
    let requests =
        b"PUT /a HTTP/1.1\r\nHost: t\r\nX-Name:  value \r\nTransfer-Encoding: Chunked\r\n\r\n\
        5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n\
        POST /b HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc\
        GET http://other/c HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for at in 0..requests.len() {
        let mut gateway = Gateway::default();
        gateway.send(&requests[..at]);
        let mut decoder = Decoder::new();
        let mut frames = sent(&mut gateway, &mut decoder);
        gateway.send(&requests[at..]);
        frames.extend(sent(&mut gateway, &mut decoder));
        let is_content = |text: &&String| text.strip_prefix("1 ").is_some_and(is_number);
        let content = frames.iter().filter(is_content).map(|text| {
            let number = text.split(' ').nth(1).expect("a length");
            number.parse::<usize>().expect("a length")
        });
        assert_eq!(content.sum::<usize>(), 15, "{at}: {frames:?}");
        let heads = frames.iter().filter(|text| text.contains('='));
        let expected = [
            "1 :method=PUT :scheme=http :path=/a :authority=t x-name=value",
            "3 :method=POST :scheme=http :path=/b :authority=t content-length=3",
            "5 :method=GET :scheme=http :path=/c :authority=other content-length=0 ends",
        ];
        assert_eq!(heads.collect::<Vec<_>>(), expected, "{at}");
        let ends = frames.iter().filter(|text| text.ends_with(" ends"));
        assert_eq!(ends.count(), 3, "{at}: {frames:?}");
    }
}

fn is_number(text: &str) -> bool {
    text.starts_with(|byte: char| byte.is_ascii_digit())
}

#[test]
fn content_waits_for_both_windows() {
    let (mut gateway, mut decoder) = (Gateway::default(), Decoder::new());
    gateway.send(b"PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n");
    gateway.send(&[b'x'; 100_000]);
    let frames = sent(&mut gateway, &mut decoder);
    assert_eq!(frames[1..], ["1 16384", "1 16384", "1 16384", "1 16383"]);
    assert!(gateway.is_blocked());
    gateway.receive(&grant(1, 100_000));
    assert!(sent(&mut gateway, &mut decoder).is_empty());
    gateway.receive(&grant(0, 10_000));
    assert_eq!(sent(&mut gateway, &mut decoder), ["1 10000"]);
    gateway.receive(&grant(0, 100_000));
    assert_eq!(sent(&mut gateway, &mut decoder), ["1 16384", "1 8081 ends"]);
    assert!(!gateway.is_blocked());
}

#[test]
fn responses_follow_each_other_in_the_order_of_the_requests() {
    let (mut gateway, mut decoder) = (Gateway::default(), Decoder::new());
    let length = "Content-Length: 1\r\n";
    gateway.send(format!("PUT / HTTP/1.1\r\nHost: t\r\n{length}\r\n").as_bytes());
    gateway.receive(&head(1, 0, &[(":status", "100")]));
    assert_eq!(received(&mut gateway), "HTTP/1.1 100 Continue\r\n\r\n");
    gateway.send(b"xHEAD / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    sent(&mut gateway, &mut decoder);
    gateway.receive(&head(3, flag::END_STREAM, &[(":status", "200")]));
    assert_eq!(received(&mut gateway), "");
    gateway.receive(&head(1, 0, &[(":status", "201"), ("x-name", "value")]));
    gateway.receive(&frame(kind::DATA, 0, 1, b"abc"));
    let begin = "HTTP/1.1 201 \r\nX-Name: value\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    assert_eq!(received(&mut gateway), begin);
    assert!(!gateway.is_over());
    gateway.receive(&frame(kind::DATA, flag::END_STREAM, 1, b""));
    assert_eq!(received(&mut gateway), "0\r\n\r\nHTTP/1.1 200 \r\n\r\n");
    assert!(gateway.is_over());
}

#[test]
fn an_early_response_ends_the_exchange() {
    let (mut gateway, mut decoder) = (Gateway::default(), Decoder::new());
    gateway.send(b"PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\nabc");
    sent(&mut gateway, &mut decoder);
    let fields = [(":status", "403"), ("content-length", "0")];
    gateway.receive(&head(1, flag::END_STREAM, &fields));
    let response = "HTTP/1.1 403 \r\nContent-Length: 0\r\n\r\n";
    assert_eq!(received(&mut gateway), response);
    assert!(gateway.is_over());
    assert_eq!(sent(&mut gateway, &mut decoder), ["1 reset"]);
    // The connection goes on.
    gateway.reuse();
    assert!(gateway.is_open() && !gateway.is_over());
    gateway.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    let frames = sent(&mut gateway, &mut decoder);
    assert_eq!(
        frames,
        ["3 :method=GET :scheme=http :path=/ :authority=t ends"]
    );
    gateway.receive(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]));
    assert!(gateway.is_refused() && !gateway.is_open());
}

#[test]
fn a_response_that_is_cut_off_ends_the_connection() {
    let mut gateway = Gateway::default();
    gateway.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    let fields = [(":status", "200"), ("content-length", "5")];
    gateway.receive(&head(1, 0, &fields));
    gateway.receive(&frame(kind::DATA, 0, 1, b"abc"));
    assert!(!gateway.is_over());
    gateway.receive(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 2]));
    assert!(gateway.is_over());
    assert!(received(&mut gateway).ends_with("\r\n\r\nabc"));
}

#[test]
#[should_panic(expected = "\"connection\" in HTTP/2")]
fn a_field_of_connections_is_refused() {
    let mut gateway = Gateway::default();
    gateway.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    gateway.receive(&head(1, 0, &[(":status", "200"), ("connection", "close")]));
}
