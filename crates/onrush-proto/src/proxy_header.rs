//! The header of the PROXY protocol, with which a load balancer begins a connection to tell the
//! server who its client is. Versions 1 (a line of text) and 2 (binary) of the specification by
//! HAProxy, section 2.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The most bytes of a header of version 1, with its line end (section 2.1).
const TEXT_BYTES_MAX: usize = 107;
const TEXT_START: &[u8] = b"PROXY ";
/// The first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The signature, version and command, family and protocol, and the length of the rest.
const FIXED_BYTES: usize = 16;
/// The most bytes behind the fixed part of version 2: addresses and extensions (TLVs).
const REST_BYTES_MAX: usize = 4096;

/// The most bytes of a header. More bytes without an end are malformed.
pub const BYTES_MAX: usize = FIXED_BYTES + REST_BYTES_MAX;

/// The client of a header that names no IP address.
pub const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The size of the header. What the client has sent follows.
    pub bytes: usize,
    /// The address of the client, [`UNKNOWN`] if it has no IP address or the proxy does not know
    /// it (`UNKNOWN`, `UNSPEC`, Unix). `None`: the client is the proxy itself (`LOCAL`), such as
    /// for a health check. The two differ: the proxy may be trusted, an unknown client may not.
    pub client: Option<SocketAddr>,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl Malformed {
    /// What is wrong, as part of a sentence. It has no input in it.
    pub fn reason(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// Parses the header at the start of a connection. `data`: all bytes that have arrived. `None`:
/// they are the start of a header.
///
/// # Errors
/// The bytes cannot become a header, whatever follows them; found at the first such byte of its
/// start, so a client that speaks HTTP is not waited for.
///
/// # Examples
/// ```
/// use onrush_proto::proxy_header::parse;
///
/// let header = parse(b"PROXY TCP4 192.0.2.1 198.51.100.1 50000 80\r\nGET /")?.unwrap();
/// assert_eq!(header.client, Some("192.0.2.1:50000".parse().unwrap()));
/// assert_eq!(header.bytes, 44);
/// assert_eq!(parse(b"PROXY TCP4 192.0."), Ok(None));
/// assert!(parse(b"GET / HTTP/1.1\r\n").is_err());
/// # Ok::<(), onrush_proto::proxy_header::Malformed>(())
/// ```
pub fn parse(data: &[u8]) -> Result<Option<ProxyHeader>, Malformed> {
    let begins = |start: &[u8]| {
        let compared = start.len().min(data.len());
        data[..compared] == start[..compared]
    };
    match (begins(TEXT_START), begins(SIGNATURE)) {
        (false, false) => Err(Malformed("no PROXY protocol header")),
        (true, _) if data.len() >= TEXT_START.len() => parse_text(data),
        (_, true) if data.len() >= FIXED_BYTES => parse_binary(data),
        _ => Ok(None),
    }
}

fn parse_text(data: &[u8]) -> Result<Option<ProxyHeader>, Malformed> {
    let line = &data[..data.len().min(TEXT_BYTES_MAX)];
    let Some(end) = line.iter().position(|&byte| byte == b'\n') else {
        return match line.len() {
            TEXT_BYTES_MAX => Err(Malformed("a line that is too long")),
            _ => Ok(None),
        };
    };
    let line = line[..end].strip_suffix(b"\r");
    let line = line.ok_or(Malformed("a line that ends without CR"))?;
    let rest = &line[TEXT_START.len()..];
    // What follows UNKNOWN is ignored.
    let client = match rest == b"UNKNOWN" || rest.starts_with(b"UNKNOWN ") {
        true => UNKNOWN,
        false => text_client(rest).ok_or(Malformed("a malformed line"))?,
    };
    let client = Some(client);
    let bytes = end + 1;
    Ok(Some(ProxyHeader { bytes, client }))
}

/// The client of `TCP4 SOURCE DESTINATION PORT PORT`, or of `TCP6`.
fn text_client(rest: &[u8]) -> Option<SocketAddr> {
    let mut parts = std::str::from_utf8(rest).ok()?.split(' ');
    let mut next = || parts.next();
    let (family, source, destination) = (next()?, next()?, next()?);
    let (source_port, destination_port) = (next()?, next()?);
    if next().is_some() {
        return None;
    }
    port(destination_port)?;
    let address = match family {
        "TCP4" => IpAddr::V4(both::<Ipv4Addr>(source, destination)?),
        "TCP6" => IpAddr::V6(both::<Ipv6Addr>(source, destination)?),
        _ => return None,
    };
    Some(SocketAddr::new(address, port(source_port)?))
}

/// The source address, if both addresses are valid.
fn both<A: FromStr>(source: &str, destination: &str) -> Option<A> {
    destination.parse::<A>().ok()?;
    source.parse().ok()
}

/// A decimal port without sign and leading zeros.
fn port(digits: &str) -> Option<u16> {
    let port: u16 = digits.parse().ok()?;
    let is_plain = digits.starts_with(|first: char| matches!(first, '1'..='9')) || digits == "0";
    is_plain.then_some(port)
}

fn parse_binary(data: &[u8]) -> Result<Option<ProxyHeader>, Malformed> {
    let is_local = match data[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(Malformed("an unknown version or command")),
    };
    let rest_bytes = usize::from(u16::from_be_bytes([data[14], data[15]]));
    if rest_bytes > REST_BYTES_MAX {
        return Err(Malformed("a header that is too long"));
    }
    let Some(rest) = data[FIXED_BYTES..].get(..rest_bytes) else {
        return Ok(None);
    };
    let client = match is_local {
        true => None, // The family and the rest mean nothing then.
        false => Some(binary_client(data[13], rest)?),
    };
    let bytes = FIXED_BYTES + rest_bytes;
    Ok(Some(ProxyHeader { bytes, client }))
}

/// The client of a header with this family and protocol. `rest` begins with the addresses.
fn binary_client(family: u8, rest: &[u8]) -> Result<SocketAddr, Malformed> {
    const SHORT: Malformed = Malformed("a header that is too short for its addresses");
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    match (family >> 4, family & 0xf) {
        (1, 1) => {
            let block = rest.first_chunk::<12>().ok_or(SHORT)?;
            let source = Ipv4Addr::new(block[0], block[1], block[2], block[3]);
            Ok(SocketAddr::new(source.into(), port(8)))
        }
        (2, 1) => {
            rest.first_chunk::<36>().ok_or(SHORT)?;
            let source: [u8; 16] = *rest.first_chunk().ok_or(SHORT)?;
            Ok(SocketAddr::new(Ipv6Addr::from(source).into(), port(32)))
        }
        // A Unix socket of the proxy. Both paths have a fixed size.
        (3, 1) => rest.first_chunk::<216>().map(|_| UNKNOWN).ok_or(SHORT),
        (0, 0..=2) | (1..=3, 0) => Ok(UNKNOWN),
        (1..=3, 2) => Err(Malformed("an address of a datagram protocol")),
        _ => Err(Malformed("an unknown address family or protocol")),
    }
}
