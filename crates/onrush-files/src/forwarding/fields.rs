//! The fields in which proxies name their clients: `X-Forwarded-For`, `X-Forwarded-Proto`, and
//! `Forwarded` (RFC 7239). Each proxy appends to them, so the last entry is that of the nearest.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An entry about one client of a proxy. `None`: not said, hidden or malformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hop {
    pub(super) address: Option<IpAddr>,
    pub(super) is_https: Option<bool>,
}

/// The scheme with this name.
pub(super) fn scheme(name: &[u8]) -> Option<bool> {
    match name.trim_ascii() {
        name if name.eq_ignore_ascii_case(b"https") => Some(true),
        name if name.eq_ignore_ascii_case(b"http") => Some(false),
        _ => None,
    }
}

/// An address with or without a port, IPv6 in brackets or without (RFC 7239 §6).
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address = match text.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => match text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            Some(six) => six.parse::<Ipv6Addr>().ok()?.into(),
            None => text.parse::<SocketAddr>().ok()?.ip(),
        },
    };
    Some(address.to_canonical())
}

/// The entries of a field line of `X-Forwarded-For`, last first.
pub(super) fn last_first(line: &[u8]) -> impl Iterator<Item = Hop> {
    line.rsplit(|&byte| byte == b',').map(|entry| Hop {
        address: address(entry.trim_ascii()),
        is_https: None,
    })
}

/// The elements of a field line of `Forwarded` (RFC 7239 §4). `None` if it breaks the grammar:
/// then an element that a client has sent could hide one of a proxy behind it.
pub(super) fn elements(line: &[u8]) -> Option<Vec<Hop>> {
    let mut hops = vec![Hop::default()];
    let (mut has_for, mut has_proto) = (false, false); // In the present element.
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        let name_bytes = rest.iter().take_while(|&&byte| is_token(byte)).count();
        let (name, behind) = rest.split_at(name_bytes);
        rest = behind;
        if !name.is_empty() {
            let value = take_value(rest.strip_prefix(b"=")?, &mut rest)?;
            let hop = hops.last_mut()?;
            // Of other names, which mean nothing here, a second one does no harm.
            let is_repeated = if name.eq_ignore_ascii_case(b"for") {
                hop.address = address(&value);
                std::mem::replace(&mut has_for, true)
            } else if name.eq_ignore_ascii_case(b"proto") {
                hop.is_https = scheme(&value);
                std::mem::replace(&mut has_proto, true)
            } else {
                false
            };
            if is_repeated {
                return None;
            }
            rest = rest.trim_ascii_start();
        }
        match rest.split_first() {
            None => return Some(hops),
            Some((b';', behind)) => rest = behind,
            Some((b',', behind)) => {
                rest = behind;
                (has_for, has_proto) = (false, false);
                hops.push(Hop::default());
            }
            Some(_) => return None,
        }
    }
}

/// Takes a token or a quoted string (RFC 9110 §5.6.4) from `text`; `rest` is what follows.
fn take_value<'t>(text: &'t [u8], rest: &mut &'t [u8]) -> Option<Vec<u8>> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let bytes = text.iter().take_while(|&&byte| is_token(byte)).count();
        *rest = &text[bytes..];
        return (bytes > 0).then(|| text[..bytes].to_vec());
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => {
                *rest = &quoted[at + 1..];
                return Some(value);
            }
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

/// Whether a byte may be in a token (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(address: &str, is_https: Option<bool>) -> Hop {
        let address = address.parse().ok();
        Hop { address, is_https }
    }

    #[test]
    fn addresses_have_several_forms() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:80", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(address(text.as_bytes()), expected.parse().ok(), "{text}");
        }
        for text in [
            "",
            "unknown",
            "_hidden",
            "host",
            "192.0.2.1:",
            "[192.0.2.1]",
            "192.0.2.01",
        ] {
            assert_eq!(address(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn elements_of_forwarded() {
        let rows = [
            ("for=192.0.2.1", vec![hop("192.0.2.1", None)]),
            (
                "For=\"[2001:db8::1]:47\";Proto=HTTPS",
                vec![hop("2001:db8::1", Some(true))],
            ),
            (
                "for=192.0.2.1;proto=http;by=203.0.113.43 ,\tfor=198.51.100.17",
                vec![hop("192.0.2.1", Some(false)), hop("198.51.100.17", None)],
            ),
            ("for=unknown, for=_x", vec![hop("", None), hop("", None)]),
            ("for=\"192.0.2.1, 9.9.9.9\"", vec![hop("", None)]),
            ("for=\"192\\.0.2.1\"", vec![hop("192.0.2.1", None)]),
            (";proto=ftp;", vec![hop("", None)]),
            ("", vec![hop("", None)]),
            (
                "for=192.0.2.1,,",
                vec![hop("192.0.2.1", None), hop("", None), hop("", None)],
            ),
        ];
        for (line, expected) in rows {
            assert_eq!(elements(line.as_bytes()), Some(expected), "{line}");
        }
        for line in [
            "for",
            "for=",
            "=x",
            "for=[2001:db8::1]",
            "for=\"",
            "for=\"a",
            "for=\"a\"b",
            "for =a",
            "for= a",
            "for=a b",
            "for=a for=b",
            "for=a;for=b",
            "for=\"a\\",
            "for=a@b",
            // What a client sends to hide the element that its proxy appends.
            "for=\"9.9.9.9, for=192.0.2.1",
            "for=\"x, for=\"192.0.2.1\"",
        ] {
            assert_eq!(elements(line.as_bytes()), None, "{line}");
        }
    }
}
