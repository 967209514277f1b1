//! Encodes header blocks (RFC 7541 §6).

use super::dynamic_table::{DynamicTable, Name};
use super::static_table::{FIELDS, index_of_name};
use super::{TABLE_BYTES, huffman, integer};

/// How a field is encoded that is in no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It is added to the table: further blocks will most likely have it, too.
    Added,
    /// It is not added: its value most likely differs in each block.
    Once,
    /// No table of any intermediary may have it (RFC 7541 §7.1.3), because it is a secret.
    Never,
}

/// Encodes the header blocks of one connection.
///
/// # Examples
/// ```
/// use onrush_proto::http2::hpack::{Encoder, Indexing};
///
/// let mut encoder = Encoder::new();
/// let mut block = Vec::new();
/// encoder.begin(&mut block);
/// encoder.field(b":status", b"200", Indexing::Once, &mut block);
/// assert_eq!(block, [0x88]);
/// ```
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// The smallest limit since the last block, if it has changed.
    least_size_max: Option<usize>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new()
    }
}

impl Encoder {
    /// An encoder with an empty table of [`TABLE_BYTES`].
    pub fn new() -> Encoder {
        Encoder {
            table: DynamicTable::new(TABLE_BYTES),
            least_size_max: None,
        }
    }

    /// The memory that is allocated, in bytes.
    pub(in crate::http2) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Applies a `SETTINGS_HEADER_TABLE_SIZE` of the peer, in bytes. A larger table than
    /// [`TABLE_BYTES`] is not used.
    pub fn set_table_bytes_max(&mut self, bytes_max: usize) {
        let size_max = bytes_max.min(TABLE_BYTES);
        if size_max != self.table.size_max() {
            self.table.set_size_max(size_max);
            let least = self.least_size_max.unwrap_or(size_max);
            self.least_size_max = Some(least.min(size_max));
        }
    }

    /// A number that is another one when the same fields may be encoded in another way. A block
    /// that did not change it can be sent again as long as it is the same.
    pub fn version(&self) -> u64 {
        self.table.version()
    }

    /// Whether the next block tells the peer a size.
    pub fn has_update(&self) -> bool {
        self.least_size_max.is_some()
    }

    /// Begins a block: tells the peer how the size of the table has changed (RFC 7541 §4.2).
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(least) = self.least_size_max.take() {
            for size_max in [least, self.table.size_max()] {
                integer::put(size_max, 5, 0x20, out);
                if least == self.table.size_max() {
                    break;
                }
            }
        }
    }

    /// Appends a field. `name` is in lower case (RFC 9113 §8.2.1).
    pub fn field(&mut self, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
        let mut name_index = index_of_name(name);
        if name_index > 0 && indexing != Indexing::Never {
            let same_name = FIELDS[name_index - 1..].iter();
            let known = (same_name.take_while(|(known, _)| known.as_bytes() == name))
                .position(|(_, known)| !known.is_empty() && known.as_bytes() == value);
            if let Some(place) = known {
                return integer::put(name_index + place, 7, 0x80, out);
            }
        }
        // Only fields that are added can be in the table.
        if indexing == Indexing::Added {
            for (place, (known_name, known_value)) in self.table.iter().enumerate() {
                if known_name == name {
                    let index = FIELDS.len() + 1 + place;
                    if known_value == value {
                        return integer::put(index, 7, 0x80, out);
                    }
                    if name_index == 0 {
                        name_index = index;
                    }
                }
            }
        }
        let (prefix_bits, first) = match indexing {
            Indexing::Added => (6, 0x40),
            Indexing::Once => (4, 0x00),
            Indexing::Never => (4, 0x10),
        };
        integer::put(name_index, prefix_bits, first, out);
        if name_index == 0 {
            string(name, out);
        }
        string(value, out);
        if indexing == Indexing::Added {
            self.table.add(Name::New(name), value);
        }
    }
}

/// Appends a string with a Huffman code, if that makes it shorter.
fn string(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::put(coded, 7, 0x80, out);
        huffman::encode(text, out);
    } else {
        integer::put(text.len(), 7, 0, out);
        out.extend_from_slice(text);
    }
}
