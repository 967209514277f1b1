//! Renders archives: what precedes and follows the content of an entry.

use super::{Format, Head, zip};
use onrush::Bytes;
use onrush_store::Kind;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The unit of tar, in bytes.
const BLOCK_BYTES: usize = 512;

/// Renders the entries of an archive. What its methods return is to be sent in order.
pub(super) enum Encoder {
    /// Renders heads into its memory, from which they are taken.
    Tar(tar::Builder<Vec<u8>>),
    Zip(Box<zip::Writer>),
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new(Format::Tar)
    }
}

impl Encoder {
    pub(super) fn new(format: Format) -> Encoder {
        match format {
            Format::Tar | Format::TarZst => Encoder::Tar(tar::Builder::new(Vec::new())),
            Format::Zip => Encoder::Zip(Box::default()),
        }
    }

    /// The head of an entry.
    pub(super) fn begin(&mut self, head: &Head) -> io::Result<Bytes> {
        let builder = match self {
            Encoder::Tar(builder) => builder,
            Encoder::Zip(writer) => return Ok(writer.begin(head).into()),
        };
        let mut header = tar::Header::new_gnu();
        let (entry_type, mode) = match head.kind {
            Kind::File => (tar::EntryType::Regular, 0o644),
            Kind::Directory => (tar::EntryType::Directory, 0o755),
        };
        header.set_entry_type(entry_type);
        header.set_mode(mode);
        header.set_size(head.size);
        header.set_mtime(head.modified_s);
        let path = Path::new(OsStr::from_bytes(&head.path));
        // Without content: only the head is written, with a long name before it.
        builder.append_data(&mut header, path, io::empty())?;
        Ok(std::mem::take(builder.get_mut()).into())
    }

    /// A piece of the content of a file.
    pub(super) fn content(&mut self, piece: Bytes) -> Bytes {
        match self {
            Encoder::Tar(_) => piece,
            Encoder::Zip(writer) => writer.content(&piece).into(),
        }
    }

    /// The end of a file of `size` bytes.
    pub(super) fn end(&mut self, size: u64) -> Bytes {
        match self {
            Encoder::Tar(_) => {
                let rest = size.next_multiple_of(BLOCK_BYTES as u64) - size;
                Bytes::from_static(&[0; BLOCK_BYTES]).slice(..rest as usize)
            }
            Encoder::Zip(writer) => writer.end().into(),
        }
    }

    /// The end of the archive.
    pub(super) fn finish(self) -> Vec<Bytes> {
        match self {
            // Two empty blocks.
            Encoder::Tar(_) => vec![Bytes::from_static(&[0; 2 * BLOCK_BYTES])],
            Encoder::Zip(writer) => writer.finish().into_iter().map(Bytes::from).collect(),
        }
    }

    /// The memory that grows with the number of entries, in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Encoder::Tar(_) => 0,
            Encoder::Zip(writer) => writer.directory_bytes(),
        }
    }
}
