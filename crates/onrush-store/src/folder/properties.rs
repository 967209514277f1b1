//! The properties of objects and folders: an extended attribute of their own, which is not part of
//! the content. Setting them changes neither the version nor the time.

use super::FolderInner;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta, PROPERTIES_BYTES_MAX};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{File, OpenHow};
use std::ffi::CStr;

const PROPERTIES: &CStr = c"user.onrush.properties";

/// The properties of an object or a folder.
pub(super) fn read(inner: &FolderInner, key: &Key) -> Result<Vec<u8>> {
    of_file(&open(inner, key)?.0)
}

/// The properties of an open file. An attribute that is too long is not of this store.
pub(super) fn of_file(file: &File) -> Result<Vec<u8>> {
    match file.attribute(PROPERTIES, PROPERTIES_BYTES_MAX) {
        Ok(properties) => Ok(properties.unwrap_or_default()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ERANGE | libc::EOPNOTSUPP) => Ok(Vec::new()),
            _ => Err(StoreError::from_open_file(error)),
        },
    }
}

/// Gives a staged file the properties of the file that it is a copy of.
pub(super) fn copy(from: &File, staged: &File) -> Result<()> {
    match &of_file(from)?[..] {
        [] => Ok(()),
        properties => set(staged, properties),
    }
}

/// Gives a staged file the properties of the object that it is going to replace.
pub(super) fn keep(inner: &FolderInner, key: &Key, staged: &File) -> Result<()> {
    match open(inner, key) {
        Ok((replaced, _)) => copy(&replaced, staged),
        Err(StoreError::NotFound) => Ok(()), // Deleted meanwhile.
        Err(error) => Err(error),
    }
}

/// Removes the properties of a staged file.
pub(super) fn clear(staged: &File) -> Result<()> {
    match &of_file(staged)?[..] {
        [] => Ok(()),
        _ => set(staged, b""),
    }
}

/// Replaces `old` by `new`. The caller holds the lock of the key.
pub(super) fn replace(inner: &FolderInner, key: &Key, old: &[u8], new: &[u8]) -> Result<()> {
    let (file, kind) = open(inner, key)?;
    if of_file(&file)? != old {
        return Err(StoreError::PreconditionFailed);
    }
    set(&file, new)?;
    if inner.durable() {
        let synced = match kind {
            Kind::File => file.sync(),
            Kind::Directory => (inner.root.open_dir(key.as_bytes())).and_then(|dir| dir.sync()),
        };
        synced.map_err(StoreError::from_open_file)?;
    }
    Ok(())
}

fn open(inner: &FolderInner, key: &Key) -> Result<(File, Kind)> {
    let permit = inner.options.descriptors.open_file(FileUse::Brief);
    let permit = permit.ok_or(StoreError::Busy)?;
    let file = inner.root.open(key.as_bytes(), OpenHow::READ);
    let file = file.map_err(StoreError::from_lookup)?.with_permit(permit);
    let found = file.metadata().map_err(StoreError::from_open_file)?;
    let meta = Meta::from_file(&found).ok_or(StoreError::NotFound)?;
    Ok((file, meta.kind))
}

fn set(file: &File, properties: &[u8]) -> Result<()> {
    let set = file.set_attribute(PROPERTIES, properties);
    set.map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => StoreError::NoMetadata,
        // There is a limit for all attributes of a file.
        Some(libc::ENOSPC | libc::E2BIG | libc::ERANGE) => StoreError::TooLarge,
        _ => StoreError::from_open_file(error),
    })
}
