//! Decodes header blocks (RFC 7541 §3, §6).

use super::dynamic_table::{DynamicTable, Name};
use super::static_table::FIELDS;
use super::{Malformed, TABLE_BYTES, huffman, integer};

/// Decodes the header blocks of one connection.
///
/// # Examples
/// ```
/// use onrush_proto::http2::hpack::Decoder;
///
/// let mut decoder = Decoder::new();
/// let mut fields = Vec::new();
/// decoder.decode(b"\x82\x41\x01a", |name, value| fields.push((name.to_vec(), value.to_vec())))?;
/// assert_eq!(fields[0], (b":method".to_vec(), b"GET".to_vec()));
/// assert_eq!(fields[1], (b":authority".to_vec(), b"a".to_vec()));
/// # Ok::<(), onrush_proto::http2::hpack::Malformed>(())
/// ```
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// Texts of strings with a Huffman code, until their field is complete.
    texts: Vec<u8>,
}

/// Memory for texts that is kept between blocks, in bytes.
const TEXTS_KEPT_BYTES: usize = 512;

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder with an empty table of [`TABLE_BYTES`]. It has no memory of its own before the
    /// first block.
    pub fn new() -> Decoder {
        Decoder {
            table: DynamicTable::new(TABLE_BYTES),
            texts: Vec::new(),
        }
    }

    /// A number that is another one when the same block may mean something else. A block that did
    /// not change it means the same as long as it is the same.
    pub fn version(&self) -> u64 {
        self.table.version()
    }

    /// The memory that is allocated, in bytes.
    pub(in crate::http2) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.texts.capacity()
    }

    /// Decodes a whole block, and passes the name and the value of each field to `field`, in order.
    /// What a field costs does not depend on what is done with it: decode all of a block that is
    /// too long, and ignore its fields.
    ///
    /// # Errors
    /// [`Malformed`]: the connection must end.
    pub fn decode(
        &mut self,
        block: &[u8],
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Malformed> {
        let mut rest = block;
        self.update_sizes(&mut rest)?;
        while let Some(&first) = rest.first() {
            match first.leading_zeros() {
                0 => {
                    let index = integer::take(&mut rest, 7)?;
                    let (name, value) = self.get(index)?;
                    field(name, value);
                }
                1 => self.literal(&mut rest, 6, true, &mut field)?,
                2 => return Err(Malformed("a table size inside a block")),
                _ => self.literal(&mut rest, 4, false, &mut field)?,
            }
        }
        self.texts.clear();
        self.texts.shrink_to(TEXTS_KEPT_BYTES);
        Ok(())
    }

    /// Size updates are in front of all fields (RFC 7541 §4.2).
    fn update_sizes(&mut self, rest: &mut &[u8]) -> Result<(), Malformed> {
        while rest.first().is_some_and(|first| first >> 5 == 1) {
            let size_max = integer::take(rest, 5)?;
            if size_max > TABLE_BYTES {
                return Err(Malformed("a table size above the setting"));
            }
            self.table.set_size_max(size_max);
        }
        Ok(())
    }

    /// The field with this index (RFC 7541 §2.3.3).
    fn get(&self, index: usize) -> Result<(&[u8], &[u8]), Malformed> {
        let place = index.checked_sub(1).ok_or(UNKNOWN)?;
        match FIELDS.get(place) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => self.table.get(place - FIELDS.len()).ok_or(UNKNOWN),
        }
    }

    /// A field whose value, and perhaps whose name, is in the block (RFC 7541 §6.2).
    fn literal(
        &mut self,
        rest: &mut &[u8],
        prefix_bits: u32,
        is_added: bool,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Malformed> {
        self.texts.clear();
        let index = integer::take(rest, prefix_bits)?;
        let name = match index {
            0 => Some(self.string(rest)?),
            _ => None,
        };
        let value = self.string(rest)?;
        let value = value.of(&self.texts);
        let name = match name {
            Some(name) => Name::New(name.of(&self.texts)),
            None => match index.checked_sub(FIELDS.len() + 1) {
                None => Name::New(FIELDS[index - 1].0.as_bytes()),
                Some(place) => Name::OfEntry(place),
            },
        };
        match name {
            Name::New(name) => field(name, value),
            Name::OfEntry(place) => field(self.table.get(place).ok_or(UNKNOWN)?.0, value),
        }
        if is_added {
            self.table.add(name, value);
        }
        Ok(())
    }

    /// Takes a string (RFC 7541 §5.2).
    fn string<'b>(&mut self, rest: &mut &'b [u8]) -> Result<Text<'b>, Malformed> {
        let is_coded = rest.first().is_some_and(|first| first & 0x80 != 0);
        let length = integer::take(rest, 7)?;
        let Some((bytes, after)) = rest.split_at_checked(length) else {
            return Err(Malformed("a string is longer than its block"));
        };
        *rest = after;
        if !is_coded {
            return Ok(Text::Plain(bytes));
        }
        let start = self.texts.len();
        huffman::decode(bytes, &mut self.texts)?;
        Ok(Text::Decoded(start, self.texts.len()))
    }
}

const UNKNOWN: Malformed = Malformed("an index without a field");

/// A string of a block.
#[derive(Clone, Copy)]
enum Text<'b> {
    Plain(&'b [u8]),
    /// Where it begins and ends in [`Decoder::texts`].
    Decoded(usize, usize),
}

impl<'b> Text<'b> {
    fn of<'t>(self, texts: &'t [u8]) -> &'t [u8]
    where
        'b: 't,
    {
        match self {
            Text::Plain(bytes) => bytes,
            Text::Decoded(start, end) => &texts[start..end],
        }
    }
}
