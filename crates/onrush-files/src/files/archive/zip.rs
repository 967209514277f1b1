//! The ZIP format, written from front to back (APPNOTE.TXT 6.3.10): a pure function of the entries
//! and their content.
//!
//! A file is stored, in the blocks of "deflate" that contain plain bytes (RFC 1951 §3.2.4). They
//! cost no CPU time and five bytes per 32 KiB. Unlike the method "stored", they end by themselves,
//! so programs that read an archive from a pipe find the next entry. The checksum follows the
//! content in a data descriptor. Sizes of 4 GB and more, and 65,535 entries and more, use ZIP64.
//!
//! Names are UTF-8 and marked as such. What Windows does not permit in a name, or takes for
//! something else in a path, and what is not UTF-8, is percent-encoded, so that every entry can be
//! extracted everywhere, none leaves the folder into which it is, and no two become one. The time
//! of the last change is in the format of DOS, in UTC with steps of two seconds, and exactly in the
//! field `UT`, which unzip and bsdtar use.

use super::Head;
use crate::hex::hex;
use crc_fast::{CrcAlgorithm, Digest};
use onrush_proto::date;
use onrush_store::Kind;
use percent_encoding::percent_encode_byte;
use sha2::{Digest as _, Sha256};

/// The content of a block. Its length has 16 bits.
const BLOCK_BYTES: usize = 32 << 10;

/// A block without content that is the last one.
const LAST_BLOCK: [u8; 5] = [1, 0, 0, 0xff, 0xff];

/// Files of this size are described with 64 bits. It leaves room for the heads of the blocks.
const LARGE_BYTES: u64 = 4_000_000_000;

/// The end of the directory is written in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

/// The largest values of 32 and 16 bits say that the value is in a field of ZIP64.
const IN_ZIP64: u32 = u32::MAX;

/// The bytes that file systems permit in a name.
const NAME_BYTES_MAX: usize = 255;
/// The bytes of a digest that stands for the rest of a name.
const DIGEST_BYTES: usize = 16;

/// Sizes and checksum follow the content.
const FLAG_DESCRIPTOR: u16 = 1 << 3;
const FLAG_UTF8: u16 = 1 << 11;

const VERSION: u16 = 20;
const VERSION_ZIP64: u16 = 45;
const MADE_BY_UNIX: u16 = 3 << 8;

const METHOD_STORED: u16 = 0;
const METHOD_DEFLATE: u16 = 8;

/// An archive under construction. What its methods return is to be sent in order.
#[derive(Default)]
pub(super) struct Writer {
    /// The bytes before the next entry.
    position: u64,
    entries: u64,
    /// The directory of the entries so far: whole pieces, and the last one.
    directory: Vec<Vec<u8>>,
    file: Option<Open>,
}

/// The file whose content is being written.
struct Open {
    common: Common,
    crc: Digest,
    size: u64,
    stored_bytes: u64,
    offset: u64,
}

/// What the head of an entry and its place in the directory have in common.
struct Common {
    name: Vec<u8>,
    kind: Kind,
    modified_s: u64,
    is_large: bool,
}

impl Writer {
    /// The head of an entry. The content of a file follows.
    pub(super) fn begin(&mut self, head: &Head) -> Vec<u8> {
        let common = Common {
            name: portable(&head.path),
            kind: head.kind,
            modified_s: head.modified_s,
            is_large: head.size >= LARGE_BYTES,
        };
        let mut extra = Vec::new();
        if common.is_large {
            // The sizes follow with 64 bits as well.
            put16(&mut extra, 1);
            put16(&mut extra, 16);
            extra.extend([0; 16]);
        }
        common.add_time(&mut extra);
        let mut out = b"PK\x03\x04".to_vec();
        common.add_to(&mut out);
        put32(&mut out, 0); // The checksum.
        let size = if common.is_large { IN_ZIP64 } else { 0 };
        put32(&mut out, size);
        put32(&mut out, size);
        put16(&mut out, common.name.len() as u16);
        put16(&mut out, extra.len() as u16);
        out.extend_from_slice(&common.name);
        out.extend(extra);
        let open = Open {
            common,
            crc: Digest::new(CrcAlgorithm::Crc32IsoHdlc),
            size: 0,
            stored_bytes: 0,
            offset: self.position,
        };
        self.position += out.len() as u64;
        match head.kind {
            Kind::Directory => self.add_to_directory(&open, 0),
            Kind::File => self.file = Some(open),
        }
        out
    }

    /// A piece of the content of the file.
    pub(super) fn content(&mut self, piece: &[u8]) -> Vec<u8> {
        let Some(file) = &mut self.file else {
            return Vec::new();
        };
        let blocks = piece.len().div_ceil(BLOCK_BYTES);
        let mut out = Vec::with_capacity(piece.len() + blocks * LAST_BLOCK.len());
        for block in piece.chunks(BLOCK_BYTES) {
            let length = block.len() as u16;
            out.push(0);
            put16(&mut out, length);
            put16(&mut out, !length);
            out.extend_from_slice(block);
        }
        file.crc.update(piece);
        file.size += piece.len() as u64;
        file.stored_bytes += out.len() as u64;
        self.position += out.len() as u64;
        out
    }

    /// The end of the file.
    pub(super) fn end(&mut self) -> Vec<u8> {
        let Some(mut file) = self.file.take() else {
            return Vec::new();
        };
        file.stored_bytes += LAST_BLOCK.len() as u64;
        let crc = file.crc.finalize() as u32;
        let mut out = LAST_BLOCK.to_vec();
        out.extend(b"PK\x07\x08");
        put32(&mut out, crc);
        for bytes in [file.stored_bytes, file.size] {
            match file.common.is_large {
                true => put64(&mut out, bytes),
                false => put32(&mut out, bytes as u32),
            }
        }
        self.position += out.len() as u64;
        self.add_to_directory(&file, crc);
        out
    }

    /// The memory of the directory so far, in bytes.
    pub(super) fn directory_bytes(&self) -> usize {
        self.directory.len() * PIECE_BYTES
    }

    /// The directory, which ends the archive, in pieces.
    pub(super) fn finish(self) -> Vec<Vec<u8>> {
        let bytes: u64 = self.directory.iter().map(|piece| piece.len() as u64).sum();
        let (offset, entries) = (self.position, self.entries);
        let mut out = Vec::new();
        let fits = |value: u64, max: u64| value.min(max);
        if entries >= u16::MAX.into() || bytes >= IN_ZIP64.into() || offset >= IN_ZIP64.into() {
            out.extend(b"PK\x06\x06");
            put64(&mut out, 44); // The bytes that follow.
            put16(&mut out, MADE_BY_UNIX | VERSION_ZIP64);
            put16(&mut out, VERSION_ZIP64);
            out.extend([0; 8]); // The archive has one part.
            for value in [entries, entries, bytes, offset] {
                put64(&mut out, value);
            }
            out.extend(b"PK\x06\x07\0\0\0\0");
            put64(&mut out, offset + bytes);
            put32(&mut out, 1);
        }
        out.extend(b"PK\x05\x06\0\0\0\0");
        for _ in 0..2 {
            put16(&mut out, fits(entries, u16::MAX.into()) as u16);
        }
        put32(&mut out, fits(bytes, IN_ZIP64.into()) as u32);
        put32(&mut out, fits(offset, IN_ZIP64.into()) as u32);
        put16(&mut out, 0); // There is no comment.
        let mut pieces = self.directory;
        pieces.push(out);
        pieces
    }

    fn add_to_directory(&mut self, entry: &Open, crc: u32) {
        let common = &entry.common;
        let mut extra = Vec::new();
        let is_far = entry.offset >= IN_ZIP64.into();
        if common.is_large || is_far {
            put16(&mut extra, 1);
            put16(
                &mut extra,
                16 * u16::from(common.is_large) + 8 * u16::from(is_far),
            );
            if common.is_large {
                put64(&mut extra, entry.size);
                put64(&mut extra, entry.stored_bytes);
            }
            if is_far {
                put64(&mut extra, entry.offset);
            }
        }
        common.add_time(&mut extra);
        let needed = 46 + common.name.len() + extra.len();
        let has_room = |piece: &Vec<u8>| piece.len() + needed <= PIECE_BYTES;
        if !self.directory.last().is_some_and(has_room) {
            self.directory.push(Vec::with_capacity(PIECE_BYTES));
        }
        let Some(out) = self.directory.last_mut() else {
            return;
        };
        let size_of = |bytes: u64| match common.is_large {
            true => IN_ZIP64,
            false => bytes as u32,
        };
        out.extend(b"PK\x01\x02");
        put16(out, MADE_BY_UNIX | VERSION_ZIP64);
        common.add_to(out);
        put32(out, crc);
        put32(out, size_of(entry.stored_bytes));
        put32(out, size_of(entry.size));
        put16(out, common.name.len() as u16);
        put16(out, extra.len() as u16);
        out.extend([0; 6]); // No comment, one part, the content is of any kind.
        let (mode, attributes) = match common.kind {
            Kind::File => (0o100_644, 0),
            Kind::Directory => (0o040_755, 0x10),
        };
        put32(out, mode << 16 | attributes);
        put32(
            out,
            if is_far {
                IN_ZIP64
            } else {
                entry.offset as u32
            },
        );
        out.extend_from_slice(&common.name);
        out.extend(extra);
        self.entries += 1;
    }
}

impl Common {
    /// The fields from the version that a reader needs to the time.
    fn add_to(&self, out: &mut Vec<u8>) {
        let (flags, method) = match self.kind {
            Kind::File => (FLAG_UTF8 | FLAG_DESCRIPTOR, METHOD_DEFLATE),
            Kind::Directory => (FLAG_UTF8, METHOD_STORED),
        };
        put16(
            out,
            match self.is_large {
                true => VERSION_ZIP64,
                false => VERSION,
            },
        );
        put16(out, flags);
        put16(out, method);
        put32(out, dos_time(self.modified_s));
    }

    /// The extra field `UT`, which has 32 bits with a sign.
    fn add_time(&self, extra: &mut Vec<u8>) {
        if let Ok(modified_s) = i32::try_from(self.modified_s) {
            extra.extend(b"UT\x05\0\x01");
            put32(extra, modified_s as u32);
        }
    }
}

/// A path whose segments Windows can create ("Naming Files, Paths, and Namespaces" of its
/// documentation).
fn portable(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|&byte| byte == b'/');
    let segments: Vec<Vec<u8>> = segments.map(portable_name).collect();
    segments.join(&b'/')
}

/// A name in which these bytes are percent-encoded (RFC 3986 §2.1): reserved and control
/// characters, what is not UTF-8, a dot or a space at the end, the first letter of the name of a
/// device, and a percent sign that would be taken for such an escape. So different names stay
/// different, and percent-decoding gives the name.
fn portable_name(name: &[u8]) -> Vec<u8> {
    let is_reserved = |c: char| "\\:<>\"|?*".contains(c) || c.is_control();
    let mut out = Vec::with_capacity(name.len());
    let mut at = 0;
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            let bytes = &name[at..at + c.len_utf8()];
            at += bytes.len();
            let is_last = at == name.len() && matches!(c, '.' | ' ');
            let is_escape = c == '%'
                && (name.get(at..at + 2))
                    .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
            match is_reserved(c) || is_last || is_escape {
                true => encode(bytes, &mut out),
                false => out.extend_from_slice(bytes),
            }
        }
        at += chunk.invalid().len();
        encode(chunk.invalid(), &mut out);
    }
    if is_device(&out) {
        let first = percent_encode_byte(out[0]);
        out.splice(..1, first.bytes());
    }
    match out.len() <= NAME_BYTES_MAX {
        true => out,
        false => shortened(out),
    }
}

fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.extend_from_slice(percent_encode_byte(byte).as_bytes());
    }
}

/// The beginning of a name that escapes have made too long for a file system, and a digest of all.
/// `%7E` before it is the escape of a character that is never encoded, so no other name has it.
fn shortened(mut name: Vec<u8>) -> Vec<u8> {
    let digest = Sha256::digest(&name);
    // A cut may leave a part of a character or of an escape.
    name.truncate(NAME_BYTES_MAX - 3 - 2 * DIGEST_BYTES);
    let whole = name
        .utf8_chunks()
        .next()
        .map_or(0, |chunk| chunk.valid().len());
    name.truncate(whole);
    let tail = name.len().saturating_sub(2);
    if let Some(cut) = name[tail..].iter().position(|&byte| byte == b'%') {
        name.truncate(tail + cut);
    }
    name.extend_from_slice(b"%7E");
    name.extend_from_slice(hex(&digest[..DIGEST_BYTES]).as_bytes());
    name
}

/// Whether a name is that of a device, with or without an extension and spaces before it.
fn is_device(name: &[u8]) -> bool {
    let stem = name.split(|&byte| byte == b'.').next().unwrap_or_default();
    let stem = stem.trim_ascii_end().to_ascii_uppercase();
    match &stem[..] {
        b"CON" | b"PRN" | b"AUX" | b"NUL" | b"CONIN$" | b"CONOUT$" => true,
        [b'C', b'O', b'M', number @ ..] | [b'L', b'P', b'T', number @ ..] => {
            let is_digit = matches!(number, [b'0'..=b'9']);
            is_digit || ["¹", "²", "³"].map(str::as_bytes).contains(&number)
        }
        _ => false,
    }
}

/// A time in the format of DOS: the date in the upper half. It has the years 1980 to 2107.
fn dos_time(unix_s: u64) -> u32 {
    let text = date::rfc3339(unix_s);
    let number = |at: usize, length: usize| -> u32 {
        let digits = text.get(at..at + length).unwrap_or_default();
        digits.parse().unwrap_or_default()
    };
    let year = number(0, 4).clamp(1980, 2107) - 1980;
    let date = year << 9 | number(5, 2) << 5 | number(8, 2);
    let time = number(11, 2) << 11 | number(14, 2) << 5 | (number(17, 2) / 2);
    date << 16 | time
}

fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend(value.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use percent_encoding::percent_decode;

    fn head(path: &str, kind: Kind, size: u64) -> Head {
        Head {
            path: path.into(),
            kind,
            size,
            modified_s: 784_111_777,
        }
    }

    #[test]
    fn a_time_of_dos_has_two_seconds_as_a_unit() {
        // 1994-11-06 08:49:36.
        assert_eq!(
            dos_time(784_111_777),
            (14 << 9 | 11 << 5 | 6) << 16 | 8 << 11 | 49 << 5 | 18
        );
        assert_eq!(dos_time(0) >> 25, 0, "1980 instead of 1970");
    }

    #[test]
    fn no_name_is_a_path_of_windows() {
        for (path, expected) in [
            (&b"a/..\\..\\C:\\x"[..], &b"a/..%5C..%5CC%3A%5Cx"[..]),
            (
                b"a<b>\"c|d?e*f/g. ./h ",
                b"a%3Cb%3E%22c%7Cd%3Fe%2Af/g. %2E/h%20",
            ),
            (
                b"con/Aux.txt/nul .a.b/com1/LPT9.x",
                b"%63on/%41ux.txt/%6Eul .a.b/%63om1/%4CPT9.x",
            ),
            (
                "COM²/lpt³.x/COM/com10/con1/conin$".as_bytes(),
                "%43OM²/%6Cpt³.x/COM/com10/con1/%63onin$".as_bytes(),
            ),
            (b"CON./CON /CON:", b"CON%2E/CON%20/CON%3A"),
            (b".a/a.b/a b/", b".a/a.b/a b/"),
            (b"C:/x\r\n\x7f", b"C%3A/x%0D%0A%7F"),
            ("ü\u{85}é".as_bytes(), "ü%C2%85é".as_bytes()),
            (b"\xff\\\x85\0:", b"%FF%5C%85%00%3A"),
            (b"100%/%/%%/%a/50%-75%", b"100%/%/%%/%a/50%-75%"),
            (b"a%20b/%3a/%25/%%3A/%:", b"a%2520b/%253a/%2525/%%253A/%%3A"),
        ] {
            assert_eq!(portable(path), expected, "{}", path.escape_ascii());
            assert_eq!(
                percent_decode(expected).collect::<Vec<u8>>(),
                path,
                "decoding gives the name"
            );
            let mut writer = Writer::default();
            let begin = writer.begin(&Head {
                path: path.into(),
                kind: Kind::Directory,
                size: 0,
                modified_s: 0,
            });
            assert_eq!(begin[6..8], FLAG_UTF8.to_le_bytes());
            assert_eq!(begin[30..][..expected.len()], *expected);
            assert!(writer.directory[0][46..].starts_with(expected));
        }
    }

    /// All short names of the bytes that matter, and long ones.
    #[test]
    fn different_names_stay_different() {
        const BYTES: &[u8] = b"%23AaE7:. _\xc3\xa9\xff";
        let mut names = vec![Vec::new()];
        let mut from = 0;
        for _ in 0..4 {
            let to = names.len();
            for at in from..to {
                let longer = |&byte: &u8| [&names[at][..], &[byte]].concat();
                let longer: Vec<Vec<u8>> = BYTES.iter().map(longer).collect();
                names.extend(longer);
            }
            from = to;
        }
        for device in [
            "con", "Con", "_con", "%63on", "%2563on", "con.", "_con_", "com1.a",
        ] {
            names.push(device.into());
        }
        let long = |unit: &str| unit.repeat(255 / unit.len()).into_bytes();
        for unit in [":", "a:", "é:", "%41", "\u{85}", "a"] {
            names.push(long(unit));
            names.push([&long(unit)[..240], b"b:"].concat());
        }
        names.sort();
        names.dedup();
        let mut found: Vec<Vec<u8>> = names.iter().map(|name| portable_name(name)).collect();
        for name in &found {
            assert!(name.len() <= NAME_BYTES_MAX && std::str::from_utf8(name).is_ok());
            assert!(!name.ends_with(b".") && !name.ends_with(b" "));
        }
        let is_cut = |name: &&Vec<u8>| name.windows(3).any(|at| at == b"%7E");
        assert_eq!(found.iter().filter(is_cut).count(), 10);
        found.sort();
        found.dedup();
        assert_eq!(found.len(), names.len());
    }

    #[test]
    fn content_is_split_into_blocks_with_their_lengths() {
        let mut writer = Writer::default();
        writer.begin(&head("a", Kind::File, 40_000));
        let out = writer.content(&[7; 40_000]);
        assert_eq!(out.len(), 40_000 + 2 * 5);
        assert_eq!(out[..5], [0, 0, 0x80, 0xff, 0x7f]);
        assert_eq!(out[32_768 + 5..][..5], [0, 0x40, 0x1c, 0xbf, 0xe3]);
        let end = writer.end();
        assert_eq!(end[..9], *b"\x01\0\0\xff\xffPK\x07\x08");
        assert_eq!(end.len(), 5 + 16);
    }

    #[test]
    fn the_checksum_is_that_of_the_format() {
        let mut writer = Writer::default();
        writer.begin(&head("a", Kind::File, 9));
        writer.content(b"12345");
        writer.content(b"6789");
        // The published check value of CRC-32.
        assert_eq!(writer.end()[9..13], 0xcbf4_3926_u32.to_le_bytes());
    }

    #[test]
    fn large_files_and_many_entries_use_64_bits() {
        let mut writer = Writer::default();
        let begin = writer.begin(&head("large", Kind::File, LARGE_BYTES));
        assert_eq!(begin[4..6], VERSION_ZIP64.to_le_bytes());
        assert_eq!(begin[18..26], [0xff; 8]);
        assert_eq!(writer.end().len(), 5 + 24);
        writer.position = u64::from(u32::MAX) + 10;
        for at in 0..66_000 {
            writer.begin(&head(&format!("{at}/"), Kind::Directory, 0));
        }
        assert!(writer.directory_bytes() > 66_000 * 46);
        let last = writer.finish().pop().expect("the end");
        assert_eq!(last.len(), 56 + 20 + 22);
        assert_eq!(last[24..32], 66_001_u64.to_le_bytes());
    }
}
