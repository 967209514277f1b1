//! OCSP responses (RFC 6960) from files, to be stapled to the handshake (RFC 6066, section 8).
//!
//! The checks find the wrong file: another format, an unsuccessful response, or a response about
//! another certificate. The signature is the concern of clients.

use super::der::{self, Reader, tag};
use super::error::{TlsError, TlsErrorKind};
use super::facts::time_of;
use super::pem::Input;
use super::period::Period;
use std::time::SystemTime;

/// `id-pkix-ocsp-basic`, the only type of response in use.
const BASIC: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x30\x01\x01";

/// The tags of `CertStatus`.
const GOOD: u8 = 0x80;
const REVOKED: u8 = 0xa1;

/// Checks that `input` is a successful response for the certificate with the serial number
/// `serial`, the content of the INTEGER, and that the certificate is not revoked. Returns the
/// validity of the response, without a title.
pub(super) fn check(input: &Input, serial: &[u8]) -> Result<Period, TlsError> {
    let malformed = || {
        let predicate = "is not an OCSP response in DER";
        input.error(TlsErrorKind::MalformedOcsp, predicate)
    };
    let status = status(input.bytes()).ok_or_else(malformed)?;
    if status != 0 {
        let name = match status {
            1 => "malformedRequest",
            2 => "internalError",
            3 => "tryLater",
            5 => "sigRequired",
            6 => "unauthorized",
            _ => "an unknown status",
        };
        let predicate = format!("is an OCSP response without success: {name}");
        return Err(input.error(TlsErrorKind::MalformedOcsp, predicate));
    }
    let certificates = certificates(input.bytes()).ok_or_else(malformed)?;
    let own = certificates.iter().find(|about| about.serial == serial);
    let own = own.ok_or_else(|| {
        let predicate = "is about another certificate";
        input.error(TlsErrorKind::OcspMismatch, predicate)
    })?;
    let (kind, predicate) = match own.status {
        GOOD => return Ok(Period::of_ocsp(own.begins, own.expires)),
        REVOKED => (
            TlsErrorKind::Revoked,
            "says that the certificate is revoked; clients refuse it: use a new certificate",
        ),
        _ => (
            TlsErrorKind::MalformedOcsp,
            "says that the authority does not know the certificate",
        ),
    };
    Err(input.error(kind, predicate))
}

/// `OCSPResponse.responseStatus`.
fn status(der: &[u8]) -> Option<u8> {
    let status = der::sequence(der)?.content(tag::ENUMERATED)?;
    match status {
        [status] => Some(*status),
        _ => None,
    }
}

/// What a response says about one certificate (`SingleResponse`).
struct About<'a> {
    serial: &'a [u8],
    /// The tag of the certificate's status.
    status: u8,
    begins: SystemTime,
    expires: Option<SystemTime>,
}

/// What a successful response says about certificates. `None` if it is malformed.
fn certificates(der: &[u8]) -> Option<Vec<About<'_>>> {
    let mut response = der::sequence(der)?;
    response.any()?; // The status.
    let mut bytes = response.inside(tag::EXPLICIT_0)?.inside(tag::SEQUENCE)?;
    if bytes.content(tag::OBJECT_IDENTIFIER)? != BASIC {
        return None;
    }
    let basic = bytes.content(tag::OCTET_STRING)?;
    let mut data = der::sequence(basic)?.inside(tag::SEQUENCE)?;
    data.optional(tag::EXPLICIT_0); // The version.
    data.any()?; // The responder.
    data.any()?; // The time of the response.
    let mut responses = data.inside(tag::SEQUENCE)?;
    let mut all = Vec::new();
    while !responses.is_empty() {
        all.push(about(responses.inside(tag::SEQUENCE)?)?);
    }
    Some(all)
}

fn about(mut single: Reader<'_>) -> Option<About<'_>> {
    let mut id = single.inside(tag::SEQUENCE)?;
    id.any()?; // The hash algorithm.
    id.any()?; // The hash of the issuer's name.
    id.any()?; // The hash of the issuer's key.
    let serial = id.content(tag::INTEGER)?;
    Some(About {
        serial,
        status: single.any()?.0,
        begins: time_of(single.time()?),
        expires: match single.optional(tag::EXPLICIT_0) {
            Some(der) => Some(time_of(Reader::new(der).time()?)),
            None => None,
        },
    })
}
