//! Files that hold private keys: only their owner can read them, and a rename replaces them.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Creates a folder that only its owner can open, with those above it.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    (DirBuilder::new().recursive(true).mode(0o700)).create(path)
}

/// Replaces the file at `path` atomically, and durably. The new file has this name with the number
/// of the process behind it until it is complete; see [`remove_leftovers`].
pub(crate) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // `create_new` follows no link (`O_EXCL`, open(2)).
    let mut file = (OpenOptions::new().write(true).create_new(true).mode(mode)).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder_of(path))?.sync_all()
}

/// The folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Removes what processes left in `folder` that were killed while they replaced one of `files`. The
/// caller makes sure that no other process replaces one now.
pub(crate) fn remove_leftovers(folder: &Path, files: &[&str]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_leftover = |file: &&str| name.strip_prefix(file).is_some_and(is_process);
        if files.iter().any(is_leftover) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether `suffix` is what [`replace`] adds to the name of a file.
fn is_process(suffix: &str) -> bool {
    let number = suffix.strip_prefix('.').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Removes the permissions of other users, which a backup may have added.
pub(crate) fn protect(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777),
            "other users could read the private key; its mode is 600 now");
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(())
}
