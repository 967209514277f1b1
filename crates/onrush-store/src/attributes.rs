//! What a folder keeps about an object in the extended attributes of its file.
//!
//! A put sets one attribute, `user.onrush`: a byte that names the form, the record of the checksum
//! if the form has one, and the metadata. A second attribute would cost another system call, 8 %
//! of the time of all those of a put to memory. An inode of ext4 (256 bytes) has room for one
//! attribute with 39 bytes of metadata; a longer one, or a second one, takes a block of the disk.
//!
//! Other programs set metadata with an attribute of its own, `user.onrush.headers`. It replaces the
//! metadata of the put, so that they need not know the form, and leaves the checksum.

use crate::checksum::Record;
use crate::error::{Result, StoreError};
use crate::meta::METADATA_BYTES_MAX;
use onrush_rt::fs::File;
use std::ffi::CStr;
use std::io;

/// The form, the record, the metadata.
const OBJECT: &CStr = c"user.onrush";

/// Metadata that replaces that of [`OBJECT`]. Earlier builds stored all metadata here.
const HEADERS: &CStr = c"user.onrush.headers";

/// Only a record. Earlier builds stored it here.
const CHECKSUM: &CStr = c"user.onrush.checksum";

const WITHOUT_RECORD: u8 = 0;
const WITH_RECORD: u8 = 1;

/// The bytes in front of the metadata, with a record.
const HEAD_BYTES_MAX: usize = 1 + Record::BYTES;

/// Sets the record and the metadata of a staged file. A sync of the file makes them durable. Fails
/// with `EOPNOTSUPP` if the file system keeps no attributes.
pub(crate) fn write(file: &File, record: Option<&Record>, metadata: &[u8]) -> io::Result<()> {
    let mut value = Vec::with_capacity(HEAD_BYTES_MAX + metadata.len());
    match record {
        Some(record) => {
            value.push(WITH_RECORD);
            value.extend_from_slice(&record.encode());
        }
        None => value.push(WITHOUT_RECORD),
    }
    value.extend_from_slice(metadata);
    file.set_attribute(OBJECT, &value)
}

/// The record of a file. `None` if it has none, or one of another form. May block.
pub(crate) fn read_record(file: &File) -> io::Result<Option<Record>> {
    let value = match read(file, OBJECT, HEAD_BYTES_MAX + METADATA_BYTES_MAX)? {
        None => read(file, CHECKSUM, HEAD_BYTES_MAX)?,
        value => value,
    };
    Ok(value.and_then(|value| split(&value).0))
}

/// The metadata of a file. Empty if it has none. May block.
pub(crate) fn read_metadata(file: &File) -> Result<Vec<u8>> {
    let read = |name, bytes_max| read(file, name, bytes_max).map_err(StoreError::from_lookup);
    if let Some(metadata) = read(HEADERS, METADATA_BYTES_MAX)? {
        return Ok(metadata);
    }
    let value = read(OBJECT, HEAD_BYTES_MAX + METADATA_BYTES_MAX)?;
    Ok(value.map_or_else(Vec::new, |mut value| {
        let metadata_bytes = split(&value).1.len();
        value.drain(..value.len() - metadata_bytes);
        value
    }))
}

/// An attribute that is longer was not written by this store, and is ignored.
fn read(file: &File, name: &CStr, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    match file.attribute(name, bytes_max) {
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => Ok(None),
        read => read,
    }
}

/// The record and the metadata of a value. Neither of one that has another form.
fn split(value: &[u8]) -> (Option<Record>, &[u8]) {
    match value.split_first() {
        Some((&WITHOUT_RECORD, metadata)) => (None, metadata),
        Some((&WITH_RECORD, rest)) => match rest.split_first_chunk() {
            Some((record, metadata)) => (Some(Record::decode(record)), metadata),
            None => (None, &[]),
        },
        _ => (None, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;
    use onrush_rt::fs::{Dir, OpenHow, sim::SimFs};

    fn file(root: &Dir, name: &[u8]) -> File {
        root.open(name, OpenHow::create_new(0o600)).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let root = SimFs::new(1).root().unwrap();
        let longest = vec![b'x'; METADATA_BYTES_MAX];
        for (number, metadata) in [&b""[..], b"m", &longest].into_iter().enumerate() {
            let file = file(&root, format!("{number}").as_bytes());
            assert_eq!(read_record(&file).unwrap(), None);
            assert_eq!(read_metadata(&file).unwrap(), b"");
            let record = Record::new(Checksum::from_value(7), &file.metadata().unwrap());
            write(&file, Some(&record), metadata).unwrap();
            assert_eq!(read_record(&file).unwrap(), Some(record));
            assert_eq!(read_metadata(&file).unwrap(), metadata);
            write(&file, None, metadata).unwrap();
            assert_eq!(read_record(&file).unwrap(), None);
            assert_eq!(read_metadata(&file).unwrap(), metadata);
        }
    }

    #[test]
    fn value_has_the_documented_form() {
        let root = SimFs::new(1).root().unwrap();
        let file = file(&root, b"a");
        file.set_len(0x0102).unwrap();
        file.set_modified(0x0304).unwrap();
        let record = Record::new(Checksum::from_value(0x0506), &file.metadata().unwrap());
        write(&file, Some(&record), b"type: x\n").unwrap();
        let mut expected = vec![1];
        for number in [0x0506_u64, 0x0102, 0x0304] {
            expected.extend_from_slice(&number.to_be_bytes());
        }
        expected.extend_from_slice(b"type: x\n");
        assert_eq!(file.attribute(OBJECT, 99).unwrap(), Some(expected));
    }

    #[test]
    fn attributes_of_earlier_builds_are_read() {
        let root = SimFs::new(1).root().unwrap();
        let file = file(&root, b"a");
        let record = Record::new(Checksum::from_value(7), &file.metadata().unwrap());
        let value = [&[1][..], &record.encode()].concat();
        file.set_attribute(CHECKSUM, &value).unwrap();
        assert_eq!(read_record(&file).unwrap(), Some(record));
        assert_eq!(read_metadata(&file).unwrap(), b"");
        file.set_attribute(HEADERS, b"m").unwrap();
        assert_eq!(read_record(&file).unwrap(), Some(record));
        assert_eq!(read_metadata(&file).unwrap(), b"m");
    }

    #[test]
    fn metadata_of_other_programs_replaces_that_of_the_put() {
        let root = SimFs::new(1).root().unwrap();
        let file = file(&root, b"a");
        let record = Record::new(Checksum::from_value(7), &file.metadata().unwrap());
        write(&file, Some(&record), b"of the put").unwrap();
        for metadata in [&b"set"[..], b""] {
            file.set_attribute(HEADERS, metadata).unwrap();
            assert_eq!(read_metadata(&file).unwrap(), metadata);
            assert_eq!(read_record(&file).unwrap(), Some(record));
        }
        file.set_attribute(HEADERS, &[b'x'; METADATA_BYTES_MAX + 1])
            .unwrap();
        assert_eq!(read_metadata(&file).unwrap(), b"of the put");
    }

    #[test]
    fn other_forms_are_ignored() {
        let root = SimFs::new(1).root().unwrap();
        let file = file(&root, b"a");
        let longer = [0; HEAD_BYTES_MAX + METADATA_BYTES_MAX + 1];
        for value in [&b""[..], &[1; HEAD_BYTES_MAX - 1], &[2; 40], &longer] {
            file.set_attribute(OBJECT, value).unwrap();
            assert_eq!(read_record(&file).unwrap(), None);
            assert_eq!(read_metadata(&file).unwrap(), b"");
        }
    }
}
