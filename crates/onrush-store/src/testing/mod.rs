//! Tests that every store passes ([`conformance`]; [`conformance_of_objects`] without folders), and
//! a store in memory ([`MemoryStore`]); the disk space of a cache ([`disk_bytes`]); and
//! [`block_on`].
//!
//! The feature `testing` enables this module. Programs do not use it.

mod conformance;
mod kept;
mod memory;
mod operations;

pub use conformance::{conformance, conformance_of_objects};
pub use memory::MemoryStore;
pub use onrush_rt::blocking::block_on;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The disk space in bytes of all files in a folder of a cache and beneath it, without those that
/// describe it. What cannot be read counts as nothing.
pub fn disk_bytes(dir: &Path) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else {
            continue;
        };
        sum += match found.is_dir() {
            true => disk_bytes(&entry.path()),
            false if entry.file_name().as_bytes().starts_with(b"onrush-") => 0,
            false => found.blocks() * 512,
        };
    }
    sum
}
