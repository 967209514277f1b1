//! What the engine reads in a ClientHello itself: the server name (SNI, RFC 6066 §3), and which
//! cipher suite is first.
//!
//! rustls shows the name to the resolver of certificates, but its unbuffered connection does not
//! return it. So this module reads it from the first message of the client. rustls parses the same
//! bytes and refuses what is malformed; here malformed bytes have no name.

use super::challenges::ACME_TLS;
use super::record::HEADER_BYTES;
use rustls::ContentType;
use rustls::pki_types::DnsName;

/// The bytes of a handshake message's header: type and length.
const MESSAGE_HEADER_BYTES: usize = 4;
/// The type of a ClientHello (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;
/// The version of TLS 1.2 in a ClientHello.
const TLS12: [u8; 2] = [3, 3];
/// The suites with ChaCha20 that rustls has: of TLS 1.3, and of TLS 1.2 with RSA and ECDSA.
const CHACHA20: [u16; 3] = [0x1303, 0xcca8, 0xcca9];
/// Reserved values have these bits in each byte (RFC 8701 §2).
const GREASE: u16 = 0x0a0a;
/// The extension that has the server name.
const SERVER_NAME: u16 = 0;
/// The extension that has the protocols of the client (RFC 7301).
const PROTOCOLS: u16 = 16;
/// The only type of names.
const HOST_NAME: u8 = 0;
/// rustls refuses a longer message.
const MESSAGE_BYTES_MAX: usize = 0xffff;

/// Reads the first message of a client.
#[derive(Debug, Default)]
pub(super) struct HelloReader {
    /// A message that spans several records, as far as received.
    partial: Vec<u8>,
    server_name: Option<String>,
    /// The client supports only versions before TLS 1.2.
    is_outdated: bool,
    is_done: bool,
}

impl HelloReader {
    /// The memory of an incomplete message, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Reads a whole record, before rustls processes it.
    pub(super) fn read(&mut self, record: &[u8]) {
        if self.is_done {
            return;
        }
        let Some(fragment) = fragment(record) else {
            return;
        };
        if self.partial.is_empty() && message_bytes(fragment).is_some_and(|n| n <= fragment.len()) {
            return self.finish(fragment);
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(fragment);
        match message_bytes(&partial) {
            Some(bytes) if bytes <= partial.len() => self.finish(&partial),
            Some(bytes) if bytes > MESSAGE_HEADER_BYTES + MESSAGE_BYTES_MAX => self.is_done = true,
            _ => self.partial = partial,
        }
    }

    fn finish(&mut self, message: &[u8]) {
        self.is_done = true;
        // Later versions than 1.2 are in an extension (RFC 8446 §4.1.2).
        let version = message.get(MESSAGE_HEADER_BYTES..MESSAGE_HEADER_BYTES + 2);
        self.is_outdated = message.first() == Some(&CLIENT_HELLO)
            && version.is_some_and(|version| version < &TLS12[..]);
        self.server_name = server_name(message);
    }

    /// Whether the client supports only versions before TLS 1.2.
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// The name, in lower case.
    pub(super) fn into_server_name(self) -> Option<String> {
        self.server_name
    }
}

/// The content of a whole record of the handshake.
fn fragment(record: &[u8]) -> Option<&[u8]> {
    let content = record.get(HEADER_BYTES..)?;
    (record[0] == u8::from(ContentType::Handshake)).then_some(content)
}

/// The bytes of the message with its header, if that is complete.
fn message_bytes(message: &[u8]) -> Option<usize> {
    let &[_, high, middle, low] = message.first_chunk::<MESSAGE_HEADER_BYTES>()?;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    Some(MESSAGE_HEADER_BYTES + length)
}

/// The name that an ACME server validates by this record. `None` if it is not a whole ClientHello
/// with a name and exactly the protocol `acme-tls/1` (RFC 8737 §3).
pub(super) fn validated_name(record: &[u8]) -> Option<String> {
    let message = fragment(record)?;
    let mut list = Reader(Reader(extension(message, PROTOCOLS)?).vector::<2>()?);
    let is_validation = list.vector::<1>()? == ACME_TLS && list.0.is_empty();
    is_validation.then(|| server_name(message)).flatten()
}

/// Whether the client prefers ChaCha20 to AES, by the first suite that it offers in this record.
/// `false` if the record is not a ClientHello, as far as its suites.
pub(super) fn prefers_chacha20(record: &[u8]) -> bool {
    first_suite(record).is_some_and(|suite| CHACHA20.contains(&suite))
}

/// The first cipher suite that is not reserved.
fn first_suite(record: &[u8]) -> Option<u16> {
    let mut hello = Reader(fragment(record)?);
    if hello.take(1)? != [CLIENT_HELLO] {
        return None;
    }
    hello.take(3 + 2 + 32)?; // length, version, random
    hello.vector::<1>()?; // session identifier
    let bytes = hello.number::<2>()?;
    let (suites, _) = hello.0.as_chunks::<2>();
    let mut suites = suites
        .iter()
        .take(bytes / 2)
        .map(|&b| u16::from_be_bytes(b));
    suites.find(|suite| suite & 0x0f0f != GREASE)
}

/// The server name of a complete ClientHello.
fn server_name(message: &[u8]) -> Option<String> {
    let mut names = Reader(Reader(extension(message, SERVER_NAME)?).vector::<2>()?);
    if names.take(1)? != [HOST_NAME] {
        return None;
    }
    let name = DnsName::try_from(names.vector::<2>()?).ok()?;
    Some(name.to_lowercase_owned().as_ref().to_owned())
}

/// The data of an extension of a complete ClientHello (RFC 8446 §4.1.2, RFC 5246 §7.4.1.2).
fn extension(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut hello = Reader(message);
    if hello.take(1)? != [CLIENT_HELLO] {
        return None;
    }
    let mut hello = Reader(hello.vector::<3>()?);
    hello.take(2 + 32)?; // version, random
    hello.vector::<1>()?; // session identifier
    hello.vector::<2>()?; // cipher suites
    hello.vector::<1>()?; // compression methods
    let mut extensions = Reader(hello.vector::<2>()?);
    loop {
        let kind = extensions.number::<2>()?;
        let data = extensions.vector::<2>()?;
        if kind == usize::from(wanted) {
            return Some(data);
        }
    }
}

/// Bytes that are read from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of `N` bytes.
    fn number<const N: usize>(&mut self) -> Option<usize> {
        let bytes = self.take(N)?;
        Some((bytes.iter()).fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    /// Bytes behind their number, which has `N` bytes.
    fn vector<const N: usize>(&mut self) -> Option<&'a [u8]> {
        let bytes = self.number::<N>()?;
        self.take(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with these extensions, as handshake message.
    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message[0] = CLIENT_HELLO;
        message.extend(body);
        message
    }

    /// The extension with this name, behind another extension.
    fn extensions(kind: u8, name: &[u8]) -> Vec<u8> {
        let bytes = name.len() as u8;
        let mut extensions = vec![
            0,
            23,
            0,
            0,
            0,
            0,
            0,
            bytes + 5,
            0,
            bytes + 3,
            kind,
            0,
            bytes,
        ];
        extensions.extend(name);
        extensions
    }

    fn record(fragment: &[u8]) -> Vec<u8> {
        let mut record = vec![22, 3, 1];
        record.extend((fragment.len() as u16).to_be_bytes());
        record.extend(fragment);
        record
    }

    fn name_of(records: &[Vec<u8>]) -> Option<String> {
        let mut reader = HelloReader::default();
        for record in records {
            reader.read(record);
        }
        reader.into_server_name()
    }

    #[test]
    fn the_name_is_in_lower_case() {
        let message = hello(&extensions(HOST_NAME, b"WWW.Example.org"));
        let name = name_of(&[record(&message)]);
        assert_eq!(name.as_deref(), Some("www.example.org"));
    }

    #[test]
    fn the_first_suite_that_is_not_reserved_counts() {
        let of = |suites: &[u16]| {
            let mut message = vec![CLIENT_HELLO, 0, 0, 0, 3, 3];
            message.extend([7; 32]);
            message.push(0);
            message.extend((2 * suites.len() as u16).to_be_bytes());
            message.extend(suites.iter().flat_map(|suite| suite.to_be_bytes()));
            message.extend([1, 0, 0, 0]);
            record(&message)
        };
        let (aes, chacha20) = (0x1301, 0x1303);
        for suites in [
            &[chacha20, aes][..],
            &[0xcca9, 0xc02b],
            &[0xcca8],
            &[0x1a1a, 0xfafa, chacha20, aes],
        ] {
            assert!(prefers_chacha20(&of(suites)), "{suites:x?}");
        }
        for suites in [
            &[aes, chacha20][..],
            &[0x0a0a, aes, chacha20],
            &[0x0a0a],
            &[],
        ] {
            assert!(!prefers_chacha20(&of(suites)), "{suites:x?}");
        }
        let whole = of(&[chacha20, aes]);
        for len in 0..whole.len() {
            let _no_panic = prefers_chacha20(&whole[..len]);
        }
        assert!(!prefers_chacha20(&whole[..45]));
    }

    #[test]
    fn a_validation_offers_only_its_protocol() {
        let with = |protocols: &[u8]| {
            let bytes = protocols.len() as u8;
            let mut extensions = extensions(HOST_NAME, b"Example.org");
            extensions.extend([0, 16, 0, bytes + 2, 0, bytes]);
            extensions.extend(protocols);
            record(&hello(&extensions))
        };
        let acme = b"\x0aacme-tls/1";
        assert_eq!(validated_name(&with(acme)).as_deref(), Some("example.org"));
        let both = [&acme[..], b"\x08http/1.1"].concat();
        for protocols in [&both[..], b"\x08http/1.1", b"\x0aacme-tls/2", b""] {
            assert_eq!(validated_name(&with(protocols)), None, "{protocols:?}");
        }
        let unnamed = record(&hello(&[0, 16, 0, 13, 0, 11, 10]));
        assert_eq!(validated_name(&unnamed), None);
        let mut other = with(acme);
        other[0] = 23;
        assert_eq!(validated_name(&other), None);
    }

    #[test]
    fn a_message_may_span_records() {
        let message = hello(&extensions(HOST_NAME, b"example.org"));
        for at in 1..message.len() {
            let (first, second) = message.split_at(at);
            let name = name_of(&[record(first), record(second)]);
            assert_eq!(name.as_deref(), Some("example.org"), "split at {at}");
        }
        let bytes: Vec<_> = message.iter().map(|&byte| record(&[byte])).collect();
        assert_eq!(name_of(&bytes).as_deref(), Some("example.org"));
    }

    #[test]
    fn malformed_bytes_have_no_name() {
        let message = hello(&extensions(HOST_NAME, b"example.org"));
        // Every cut, with the length of the message adjusted: a list is too short.
        for end in MESSAGE_HEADER_BYTES..message.len() {
            let mut cut = message[..end].to_vec();
            cut[..4].copy_from_slice(&((end - 4) as u32).to_be_bytes());
            cut[0] = CLIENT_HELLO;
            assert_eq!(name_of(&[record(&cut)]), None, "cut at {end}");
        }
        assert_eq!(
            name_of(&[record(&hello(&extensions(1, b"example.org")))]),
            None
        );
        assert_eq!(
            name_of(&[record(&hello(&extensions(0, b"127.0.0.1")))]),
            None
        );
        assert_eq!(name_of(&[record(&hello(&extensions(0, b"a b")))]), None);
        assert_eq!(name_of(&[record(&hello(&[]))]), None);
        assert_eq!(name_of(&[vec![22]]), None);
        let mut other = message.clone();
        other[0] = 2;
        assert_eq!(name_of(&[record(&other)]), None);
    }

    #[test]
    fn only_the_first_message_counts() {
        let first = hello(&extensions(HOST_NAME, b"a.example"));
        let second = hello(&extensions(HOST_NAME, b"b.example"));
        let name = name_of(&[vec![20, 3, 3, 0, 1, 1], record(&first), record(&second)]);
        assert_eq!(name.as_deref(), Some("a.example"));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_kept() {
        let mut reader = HelloReader::default();
        reader.read(&record(&[CLIENT_HELLO, 1, 0, 0]));
        reader.read(&record(&[0; 100]));
        assert!(reader.is_done && reader.partial.is_empty());
    }
}
