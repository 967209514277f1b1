//! The options of a folder that can change while it is in use.

use super::FolderOptions;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// See [`FolderOptions`]. Each read stands alone, so no order between them is needed.
pub(super) struct Settings {
    pub(super) min_free_bytes: AtomicU64,
    pub(super) checksums: AtomicBool,
    pub(super) keep_properties: AtomicBool,
}

impl Settings {
    pub(super) fn new(options: &FolderOptions) -> Settings {
        Settings {
            min_free_bytes: AtomicU64::new(options.min_free_bytes),
            checksums: AtomicBool::new(options.checksums),
            keep_properties: AtomicBool::new(options.keep_properties),
        }
    }

    pub(super) fn set(&self, options: &FolderOptions) {
        self.min_free_bytes.store(options.min_free_bytes, Relaxed);
        self.checksums.store(options.checksums, Relaxed);
        self.keep_properties.store(options.keep_properties, Relaxed);
    }
}
