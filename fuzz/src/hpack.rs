//! Header compression: each sequence of blocks gives the same fields as the decoder of the crate
//! loona-hpack, or both refuse it. What the encoder writes is read by both.
//!
//! They differ about updates of the table's size in two ways. loona-hpack 0.4.3 accepts them behind
//! a field, which RFC 7541 §4.2 does not allow, and refuses a block without fields, which no rule
//! forbids.

use crate::Choices;
use loona_hpack::decoder::DecoderError;
use onrush_proto::http2::hpack::{Decoder, Encoder, Indexing, Malformed, TABLE_BYTES};
use std::iter;

/// Names and values.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Names of fields, some with several values in the static table.
const NAMES: [&str; 14] = [
    ":status",
    ":method",
    ":path",
    ":authority",
    "accept-encoding",
    "age",
    "content-length",
    "cookie",
    "date",
    "server",
    "set-cookie",
    "www-authenticate",
    "x-a",
    "x-b",
];

const VALUES: [&str; 8] = [
    "",
    "200",
    "404",
    "GET",
    "/",
    "gzip, deflate",
    "onrush",
    "Sun, 29 Nov 2026 17:00:00 GMT",
];

pub(crate) const INDEXING: [Indexing; 3] = [Indexing::Added, Indexing::Once, Indexing::Never];

/// Checks one input: blocks, or with bit 0 what an encoder is told.
///
/// # Panics
/// If what the module promises does not hold.
pub fn check_input(input: &[u8]) {
    let Some((choices, bytes)) = Choices::take(input) else {
        return;
    };
    match choices.has(0) {
        true => check_encoder(bytes),
        false => check_blocks(bytes),
    }
}

/// Decodes blocks, each behind a byte with its length. What is decoded is encoded and decoded
/// again.
fn check_blocks(bytes: &[u8]) {
    let (mut decoder, mut peer) = (Decoder::new(), Peer::new());
    let (mut encoder, mut own, mut other) = (Encoder::new(), Decoder::new(), Peer::new());
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        // The longest length means all that is left.
        let end = match usize::from(length) {
            255 => after.len(),
            length => length.min(after.len()),
        };
        let (block, after) = after.split_at(end);
        rest = after;
        let Some(fields) = decode_both(&mut decoder, &mut peer, block) else {
            return;
        };
        let mut written = Vec::new();
        encoder.begin(&mut written);
        for ((name, value), indexing) in fields.iter().zip(INDEXING.iter().cycle()) {
            encoder.field(name, value, *indexing, &mut written);
        }
        let read = decode_both(&mut own, &mut other, &written);
        assert_eq!(read, Some(fields), "the encoder writes other fields");
    }
}

/// Decodes a block with both decoders. Returns its fields, or `None` if both refuse it.
fn decode_both(decoder: &mut Decoder, peer: &mut Peer, block: &[u8]) -> Option<Fields> {
    let mut fields = Fields::new();
    let result = decoder.decode(block, |name, value| {
        fields.push((name.to_vec(), value.to_vec()));
    });
    let (others, other) = peer.read(block);
    match (result, other) {
        (Ok(()), Ok(())) => {
            assert_eq!(fields, others);
            Some(fields)
        }
        (Ok(()), Err(DecoderError::SizeUpdateAtEnd)) => {
            assert!(fields.is_empty() && others.is_empty());
            Some(fields)
        }
        (Err(Malformed("a table size inside a block")), _) => {
            assert!(!fields.is_empty() && others.starts_with(&fields));
            None
        }
        (Err(_), Err(_)) => {
            assert_eq!(fields, others, "another field is wrong");
            None
        }
        (own, other) => panic!("{own:?} and {other:?}: {}", block.escape_ascii()),
    }
}

/// Encodes blocks as the input says. Both decoders read the fields of each.
fn check_encoder(bytes: &[u8]) {
    let (mut encoder, mut decoder, mut peer) = (Encoder::new(), Decoder::new(), Peer::new());
    let (mut block, mut sent) = (None::<Vec<u8>>, Fields::new());
    let mut input = bytes.iter().copied();
    while let Some(what) = input.next() {
        let mut next = || usize::from(input.next().unwrap_or_default());
        match what & 7 {
            0 | 1 if block.is_some() => {
                let block = block.take().unwrap_or_default();
                check_written(&block, &sent, &mut decoder, &mut peer);
                sent.clear();
            }
            0 | 1 => {
                let bytes_max = match what & 1 {
                    0 => next(),
                    _ => next() << (what >> 3),
                };
                encoder.set_table_bytes_max(bytes_max);
                peer.set_table_bytes_max(bytes_max);
            }
            _ => {
                let name = match what >> 6 {
                    0 => iter::repeat_with(|| next() as u8).take(3).collect(),
                    _ => NAMES[next() % NAMES.len()].as_bytes().to_vec(),
                };
                let value = match what >> 4 & 3 {
                    0 => VALUES[next() % VALUES.len()].as_bytes().to_vec(),
                    1 => vec![next() as u8; next() * 20],
                    _ => iter::repeat_with(|| next() as u8)
                        .take(usize::from(what & 15))
                        .collect(),
                };
                let block = block.get_or_insert_with(|| {
                    let mut block = Vec::new();
                    encoder.begin(&mut block);
                    block
                });
                let indexing = INDEXING[next() % INDEXING.len()];
                encoder.field(&name, &value, indexing, block);
                sent.push((name, value));
            }
        }
    }
    if let Some(block) = block {
        check_written(&block, &sent, &mut decoder, &mut peer);
    }
}

fn check_written(block: &[u8], sent: &Fields, decoder: &mut Decoder, peer: &mut Peer) {
    peer.check_updates(block);
    assert_eq!(decode_both(decoder, peer, block).as_ref(), Some(sent));
}

/// The decoder of a peer, with the limits that it has set.
pub(crate) struct Peer {
    decoder: loona_hpack::Decoder<'static>,
    /// The size of its table, as the encoder has said.
    size: usize,
    /// The least limit since the last block, and the last one.
    least: usize,
    last: usize,
}

impl Peer {
    pub(crate) fn new() -> Peer {
        let mut decoder = loona_hpack::Decoder::new();
        decoder.set_max_allowed_table_size(TABLE_BYTES);
        Peer {
            decoder,
            size: TABLE_BYTES,
            least: TABLE_BYTES,
            last: TABLE_BYTES,
        }
    }

    /// Sets the limit of the table, as a `SETTINGS_HEADER_TABLE_SIZE` that was acknowledged.
    pub(crate) fn set_table_bytes_max(&mut self, bytes_max: usize) {
        self.decoder.set_max_allowed_table_size(bytes_max);
        self.least = self.least.min(bytes_max);
        self.last = bytes_max;
    }

    /// Decodes a block of the encoder that obeys these limits.
    ///
    /// # Panics
    /// If it does not.
    pub(crate) fn decode(&mut self, block: &[u8]) -> Fields {
        self.check_updates(block);
        match self.read(block) {
            (fields, Ok(()) | Err(DecoderError::SizeUpdateAtEnd)) => fields,
            (_, Err(error)) => panic!("{error}: {}", block.escape_ascii()),
        }
    }

    fn read(&mut self, block: &[u8]) -> (Fields, Result<(), DecoderError>) {
        let mut fields = Fields::new();
        let result = self.decoder.decode_with_cb(block, |name, value| {
            fields.push((name.into_owned(), value.into_owned()));
        });
        (fields, result)
    }

    /// Checks that a block begins with the updates that are due: the least limit that the table has
    /// exceeded, and the one that holds now (RFC 7541 §4.2).
    fn check_updates(&mut self, block: &[u8]) {
        let updates = updates(block);
        assert!(updates.len() <= 2, "{updates:?}");
        if self.least < self.size {
            let first = updates.first();
            assert!(
                first.is_some_and(|&first| first <= self.least),
                "{updates:?}"
            );
        }
        self.size = updates.last().copied().unwrap_or(self.size);
        assert!(self.size <= self.last, "{updates:?}");
        self.least = self.last;
    }
}

/// The updates of the table's size at the start of a block (RFC 7541 §6.3).
fn updates(block: &[u8]) -> Vec<usize> {
    let (mut rest, mut updates) = (block, Vec::new());
    while let Some((&first @ 0x20..=0x3f, after)) = rest.split_first() {
        let mut size = usize::from(first & 0x1f);
        rest = after;
        let mut shift = 0;
        while size >= 31
            && let Some((&byte, after)) = rest.split_first()
        {
            size += usize::from(byte & 0x7f) << shift;
            shift += 7;
            rest = after;
            if byte < 0x80 {
                break;
            }
        }
        updates.push(size);
    }
    updates
}
