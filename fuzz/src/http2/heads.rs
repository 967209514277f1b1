//! A request head, as the text of HTTP/1 that means the same: the parser of HTTP/1 reads it as the
//! machine has read the fields. So what servers of HTTP/1 read differently is refused.

use onrush_proto::chunked::Decoder;
use onrush_proto::head::{Framing, Head, Parsed, Version};
use onrush_proto::limits::Limits;

/// Checks the head of a request that was accepted. `has_ended`: its frame has END_STREAM.
///
/// HTTP/1 says otherwise how a body is delimited, so one without a length differs: it has no line
/// in the text.
pub(super) fn check_request(head: &Head, bytes: &[u8], has_ended: bool, limits: &Limits) {
    let line_end = bytes.windows(2).position(|two| two == b"\r\n");
    let (line, rest) = bytes.split_at(line_end.expect("a request line"));
    let line = line.strip_suffix(b" HTTP/2").expect("a version");
    // To HTTP/1, an extended CONNECT is a request that asks for an upgrade, as a GET is.
    let (line, is_connect) = match line.strip_prefix(b"CONNECT") {
        Some(target) => ([b"GET", target].concat(), true),
        None => (line.to_vec(), false),
    };
    let text = [&line, &b" HTTP/1.1"[..], rest].concat();
    let mut again = Head::default();
    let parsed = again.parse(&text, limits);
    assert_eq!(
        parsed,
        Ok(Parsed::Complete(text.len())),
        "{}",
        text.escape_ascii()
    );
    assert_eq!(head.version(), Version::Http2);
    let method = if is_connect {
        "CONNECT"
    } else {
        again.method(&text)
    };
    assert_eq!(method, head.method(bytes));
    assert_eq!(again.target(&text), head.target(bytes));
    assert_eq!(again.path(&text), head.path(bytes));
    assert_eq!(again.query(&text), head.query(bytes));
    assert_eq!(again.host(&text), head.host(bytes));
    assert_eq!(again.content_length(), head.content_length());
    assert_eq!(again.expects_continue(), head.expects_continue());
    assert_eq!(again.is_head_method(), head.is_head_method());
    assert!(again.keep_alive() && head.keep_alive());
    assert!(
        again.headers(&text).eq(head.headers(bytes)),
        "{}",
        text.escape_ascii()
    );
    let framing = match again.framing() {
        Framing::None if !has_ended && !is_connect && again.content_length().is_none() => {
            Framing::Chunked
        }
        framing => framing,
    };
    assert_eq!(head.framing(), framing);
}

/// Checks the lines of trailers that were accepted.
pub(super) fn check_trailers(lines: &[u8], limits: &Limits) {
    let text = [b"0\r\n", lines, b"\r\n"].concat();
    let mut decoder = Decoder::new();
    let piece = decoder.decode(&text, limits);
    let whole = piece.map(|piece| (piece.consumed, piece.end));
    assert_eq!(whole, Ok((text.len(), true)), "{}", lines.escape_ascii());
    assert_eq!(decoder.take_trailers().unwrap_or_default().as_ref(), lines);
}
