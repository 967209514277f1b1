//! A request head: any bytes give the same result (a head or an error) when parsed in pieces, at
//! once, and again.

use crate::Choices;
use onrush_proto::{
    head::{Framing, Head, Parsed, Version},
    limits::Limits,
    token,
};

/// Checks one input.
///
/// # Panics
/// If what the module promises does not hold.
pub fn check_input(input: &[u8]) {
    let Some((choices, bytes)) = Choices::take(input) else {
        return;
    };
    let limits = choices.limits();
    let mut head = Head::default();
    let whole = head.parse(bytes, &limits);
    if let Ok(Parsed::Complete(len)) = whole {
        check(&head, bytes, len, &limits);
    }
    let mut early = Head::default();
    for split in choices.splits(bytes.len()) {
        match early.parse(&bytes[..split], &limits) {
            Ok(Parsed::Partial) => {}
            settled => assert_eq!(
                settled, whole,
                "another result at {split} than for the whole input"
            ),
        }
    }
}

/// An accepted head must be clean, and must parse to the same head when it is written again.
fn check(head: &Head, bytes: &[u8], len: usize, limits: &Limits) {
    assert!(bytes[..len].ends_with(b"\r\n\r\n") && len <= limits.head_bytes_max + 4);
    assert!(head.target(bytes).len() <= limits.target_bytes_max);
    assert!(head.header_count() <= limits.field_count_max);
    assert!(token::is_token(head.method(bytes).as_bytes()));
    assert!(head.target(bytes).iter().all(u8::is_ascii_graphic));
    assert!(head.version() == Version::Http10 || head.host(bytes).is_some());
    for (name, value) in head.headers(bytes) {
        assert!(token::is_token(name.as_bytes()) && token::is_field_value(value));
        assert_eq!(token::trim(value), value);
    }
    let count = |name: &str| {
        let named = |(field, _): &(&str, &[u8])| field.eq_ignore_ascii_case(name);
        head.headers(bytes).filter(named).count()
    };
    assert!(count("host") <= 1 && count("content-length") <= 1);
    let chunked = count("transfer-encoding") > 0;
    assert!(!(chunked && count("content-length") > 0), "two framings");
    assert_eq!(chunked, head.framing() == Framing::Chunked);
    if let Framing::Length(length) = head.framing() {
        assert!(length > 0 && head.content_length() == Some(length));
    }

    let written = write(head, bytes);
    let mut again = Head::default();
    let parsed = again.parse(&written, &Limits::default());
    assert_eq!(parsed, Ok(Parsed::Complete(written.len())));
    assert_eq!(again.method(&written), head.method(bytes));
    assert_eq!(again.path(&written), head.path(bytes));
    assert_eq!(again.query(&written), head.query(bytes));
    assert_eq!(again.host(&written), head.host(bytes));
    assert_eq!(again.framing(), head.framing());
    assert_eq!(again.keep_alive(), head.keep_alive());
    assert_eq!(again.expects_continue(), head.expects_continue());
    assert!(again.headers(&written).eq(head.headers(bytes)));
}

/// Writes the head in the usual form.
fn write(head: &Head, bytes: &[u8]) -> Vec<u8> {
    let version = match head.version() {
        Version::Http10 => &b" HTTP/1.0\r\n"[..],
        Version::Http11 => b" HTTP/1.1\r\n",
        Version::Http2 => unreachable!("only the machine for HTTP/2 makes such a head"),
    };
    let mut out = [
        head.method(bytes).as_bytes(),
        b" ",
        head.target(bytes),
        version,
    ]
    .concat();
    for (name, value) in head.headers(bytes) {
        out.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    out.extend_from_slice(b"\r\n");
    out
}
