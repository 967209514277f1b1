//! A temporary directory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory of this test alone. Dropping it removes it with its content.
pub struct TempDir(PathBuf);

impl TempDir {
    /// One beneath the system's folder for temporary files.
    ///
    /// # Panics
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "a test makes it on purpose")]
    pub fn new() -> TempDir {
        TempDir::beneath(&std::env::temp_dir())
    }

    /// One beneath `parent`.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn beneath(parent: &Path) -> TempDir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("onrush-test-{}-{number}", std::process::id()));
        // A killed process with the same number may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a new directory");
        TempDir(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
