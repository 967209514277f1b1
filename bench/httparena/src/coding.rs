//! Compression of JSON that is made for one request.

use flate2::Compression;
use flate2::write::GzEncoder;
use onrush::Request;
use serde::Serialize;
use std::io;

/// The benchmark weighs the size of a response twice, and the requests per second once.
const GZIP_LEVEL: u32 = 6;

/// Whether the client accepts gzip (RFC 9110 §12.5.3). A weight of 0 means that it does not.
pub(crate) fn accepts_gzip(request: &Request) -> bool {
    let values = request.header_values("Accept-Encoding");
    let values = values.filter_map(|value| str::from_utf8(value).ok());
    values.flat_map(|value| value.split(',')).any(|member| {
        let mut parts = member.split(';').map(str::trim);
        let is_gzip = parts
            .next()
            .is_some_and(|coding| coding.eq_ignore_ascii_case("gzip"));
        is_gzip && !parts.any(is_zero)
    })
}

/// Whether a parameter is a weight of 0.
fn is_zero(parameter: &str) -> bool {
    let weight = parameter
        .strip_prefix("q=")
        .or(parameter.strip_prefix("Q="));
    weight.and_then(|weight| weight.parse().ok()) == Some(0.0_f32)
}

/// `value` as compressed JSON.
pub(crate) fn gzip(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL));
    serde_json::to_writer(&mut encoder, value)?;
    encoder.finish()
}
