//! Syntax of request targets and hosts (RFC 9112 §3.2, RFC 3986 §3.2).

use crate::token;
use std::{net::Ipv6Addr, ops::Range};

/// A target that does not begin with `/`. Ranges are offsets into the target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `*`
    Asterisk,
    /// `http://host:port/path?query`, or `https`.
    Absolute {
        host: Range<usize>,
        path: Range<usize>,
        query: Option<Range<usize>>,
    },
}

const EACH: u64 = u64::from_ne_bytes([1; 8]);
const HIGH: u64 = EACH << 7;

/// Marks the high bit of each byte of `word` that is zero. The result is non-zero exactly if there
/// is one; bytes above it may be marked falsely.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & HIGH
}

/// Checks the bytes of a target that httparse accepted: no `#`, nothing outside ASCII. (httparse
/// refuses control characters and spaces.) `None`: refused. Otherwise returns the position of the
/// first `?`.
#[inline]
pub(crate) fn check_bytes(target: &[u8]) -> Option<Option<usize>> {
    let (mut bad, mut mark) = (0, 0);
    // Eight bytes at a time; most targets have only a few such words.
    let (words, rest) = target.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        bad |= (word & HIGH) | zero_bytes(word ^ (EACH * b'#' as u64));
        mark |= zero_bytes(word ^ (EACH * b'?' as u64));
    }
    for &byte in rest {
        bad |= u64::from(byte >= 0x80 || byte == b'#');
        mark |= u64::from(byte == b'?');
    }
    if bad != 0 {
        return None;
    }
    if mark == 0 {
        return Some(None);
    }
    Some(target.iter().position(|&b| b == b'?'))
}

/// Splits a target that does not begin with `/`. `None`: it is neither asterisk-form nor
/// absolute-form. `query_mark` is the position of its first `?`.
pub(crate) fn form(target: &[u8], query_mark: Option<usize>) -> Option<Form> {
    if target == b"*" {
        return Some(Form::Asterisk);
    }
    let has_scheme = |scheme: &[u8]| {
        target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    let start = match () {
        _ if has_scheme(b"http://") => 7,
        _ if has_scheme(b"https://") => 8,
        _ => return None,
    };
    let path_end = query_mark.unwrap_or(target.len());
    let path = target.get(start..path_end)?.iter().position(|&b| b == b'/');
    let host_end = path.map_or(path_end, |path| start + path);
    // Refuses user information (RFC 9110 §4.2.4), because `@` is not a host byte.
    if host_end == start || !is_host(&target[start..host_end]) {
        return None;
    }
    Some(Form::Absolute {
        host: start..host_end,
        path: host_end..path_end,
        query: query_mark.map(|mark| mark + 1..target.len()),
    })
}

/// Whether `bytes` are `uri-host [":" port]` with a host that is not empty.
///
/// The host may be a name with percent-encoded bytes, an IPv4 address or an IPv6 address in
/// brackets. Zone identifiers and the unused `IPvFuture` are refused. A port is at most 65535, and
/// may be empty, as in the grammar.
#[inline]
pub(crate) fn is_host(bytes: &[u8]) -> bool {
    let name_end = bytes.iter().position(|&b| !token::is_reg_name_byte(b));
    match name_end.map(|end| (end, bytes[end])) {
        None => !bytes.is_empty(),
        Some((0, b'[')) => is_ip_literal(bytes),
        Some((end, b':')) => end > 0 && is_port(&bytes[end + 1..]),
        Some((_, b'%')) => is_encoded_host(bytes),
        Some(_) => false,
    }
}

#[inline]
fn is_port(bytes: &[u8]) -> bool {
    let mut port = 0;
    // Six digits cannot overflow, and a port has at most five.
    for &byte in bytes.iter().take(6) {
        port = port * 10 + u32::from(byte.wrapping_sub(b'0'));
        if !byte.is_ascii_digit() {
            return false;
        }
    }
    bytes.len() <= 5 && port <= 65535
}

#[cold]
fn is_ip_literal(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|&b| b == b']') else {
        return false;
    };
    let address = str::from_utf8(&bytes[1..end])
        .ok()
        .and_then(|text| text.parse().ok());
    let _: Ipv6Addr = match address {
        Some(address) => address,
        None => return false,
    };
    match &bytes[end + 1..] {
        [] => true,
        [b':', port @ ..] => is_port(port),
        _ => false,
    }
}

#[cold]
fn is_encoded_host(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        rest = match rest {
            [] => return true,
            [b'%', a, b, rest @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => rest,
            [b':', port @ ..] => return is_port(port),
            [byte, rest @ ..] if token::is_reg_name_byte(*byte) => rest,
            _ => return false,
        };
    }
}
