//! OCSP responses (RFC 6960) without a valid signature, which only clients check.
#![allow(unreachable_pub)]

use onrush_proto::date::utc;
use std::time::SystemTime;

#[derive(Clone, Copy)]
pub enum Status {
    Good,
    Revoked,
    Unknown,
}

/// A response about `certificate`, in DER, that is valid from `begin` to `end`.
pub fn response(certificate: &[u8], status: Status, begin: SystemTime, end: SystemTime) -> Vec<u8> {
    let digest = element(0x04, &[&[0; 20]]);
    let sha1 = element(0x30, &[b"\x06\x05\x2b\x0e\x03\x02\x1a"]);
    let serial = element(0x02, &[serial(certificate)]);
    let id = element(0x30, &[&sha1, &digest, &digest, &serial]);
    let status = match status {
        Status::Good => element(0x80, &[]),
        Status::Revoked => element(0xa1, &[&time(begin)]),
        Status::Unknown => element(0x82, &[]),
    };
    let end = element(0xa0, &[&time(end)]);
    let single = element(0x30, &[&id, &status, &time(begin), &end]);
    let responder = element(0xa2, &[&digest]);
    let all = element(0x30, &[&single]);
    let data = element(0x30, &[&responder, &time(begin), &all]);
    let signature = element(0x03, &[&[0; 8]]);
    let basic = element(0x30, &[&data, &sha1, &signature]);
    let basic = element(0x04, &[&basic]);
    let kind = b"\x06\x09\x2b\x06\x01\x05\x05\x07\x30\x01\x01";
    let bytes = element(0xa0, &[&element(0x30, &[kind, &basic])]);
    element(0x30, &[&element(0x0a, &[&[0]]), &bytes])
}

/// The serial number, which follows the version 3.
fn serial(certificate: &[u8]) -> &[u8] {
    let version = b"\xa0\x03\x02\x01\x02\x02";
    let mut places = certificate.windows(version.len());
    let at = places
        .position(|bytes| bytes == version)
        .expect("version 3")
        + version.len();
    let length = usize::from(certificate[at]);
    &certificate[at + 1..][..length]
}

fn time(time: SystemTime) -> Vec<u8> {
    let mut digits = utc(time);
    digits.retain(|letter| letter.is_ascii_digit());
    element(0x18, &[digits.as_bytes(), b"Z"])
}

fn element(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let content = contents.concat();
    let length = u16::try_from(content.len()).expect("a short content");
    let length = length.to_be_bytes();
    [&[tag, 0x82], &length[..], &content].concat()
}
