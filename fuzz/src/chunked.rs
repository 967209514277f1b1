//! A chunked body. Decoding it whole or in pieces gives the same data, trailers, end or error. A
//! simple reference decoder agrees on accepted bodies. The decoder reads what the encoder writes.

use crate::Choices;
use onrush_proto::{
    chunked::{Decoder, encode_chunk_header, encode_end},
    limits::Limits,
    reject::Reject,
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
    let whole = decode(bytes, &[], &limits);
    assert!(whole.consumed <= bytes.len() && whole.data.len() <= bytes.len());
    assert_eq!(decode(bytes, &choices.splits(bytes.len()), &limits), whole);
    let each: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(decode(bytes, &each, &limits), whole);

    if whole.end == Ok(true) {
        let plain = read_plainly(&bytes[..whole.consumed]);
        assert_eq!(plain, Some(whole.data));
    }

    // Any bytes are valid data.
    let mut encoded = Vec::new();
    for chunk in bytes.chunks(1 + bytes.len() / 3) {
        encode_chunk_header(chunk.len(), &mut encoded);
        encoded.extend_from_slice(chunk);
        encoded.extend_from_slice(b"\r\n");
    }
    encode_end(b"", &mut encoded);
    let decoded = decode(&encoded, &choices.splits(encoded.len()), &limits);
    assert_eq!((decoded.end, decoded.data.as_slice()), (Ok(true), bytes));
    assert_eq!((decoded.consumed, decoded.trailers), (encoded.len(), None));
}

#[derive(Debug, PartialEq)]
struct Decoded {
    consumed: usize,
    data: Vec<u8>,
    trailers: Option<Box<[u8]>>,
    end: Result<bool, Reject>,
}

/// Decodes `bytes`, received in pieces that end at `splits`.
fn decode(bytes: &[u8], splits: &[usize], limits: &Limits) -> Decoded {
    let mut decoder = Decoder::new();
    let mut decoded = Decoded {
        consumed: 0,
        data: Vec::new(),
        trailers: None,
        end: Ok(false),
    };
    for &arrived in splits.iter().chain([&bytes.len()]) {
        while decoded.consumed < arrived && decoded.end == Ok(false) {
            let piece = &bytes[decoded.consumed..arrived];
            match decoder.decode(piece, limits) {
                Ok(step) => {
                    assert!(step.end || step.consumed > 0, "no progress");
                    assert!(step.data.end <= step.consumed);
                    decoded.data.extend_from_slice(&piece[step.data.clone()]);
                    decoded.consumed += step.consumed;
                    decoded.end = Ok(step.end);
                    assert_eq!(step.end, decoder.ended());
                }
                Err(reject) => {
                    assert!(
                        decoder.decode(piece, limits).is_err(),
                        "input consumed after an error"
                    );
                    // The exact position of an error is not specified.
                    decoded.consumed = 0;
                    decoded.end = Err(reject);
                }
            }
        }
    }
    decoded.trailers = decoder.take_trailers();
    decoded
}

/// The data of a body that is well-formed to its last byte. Trailers are only checked to be lines.
fn read_plainly(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let line = take_line(&mut body)?;
        let size = line.split(|&byte| byte == b';').next()?;
        let size = u128::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        let (chunk, rest) = body.split_at_checked(usize::try_from(size).ok()?)?;
        data.extend_from_slice(chunk);
        body = rest.strip_prefix(b"\r\n")?;
    }
    while !take_line(&mut body)?.is_empty() {}
    body.is_empty().then_some(data)
}

fn take_line<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let line = &bytes[..end];
    *bytes = &bytes[end + 2..];
    Some(line)
}
