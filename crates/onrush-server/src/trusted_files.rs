//! Files with secrets must not be objects: a client could read them, or replace them by its own.

use crate::config::{CertificateSource, Settings};
use crate::failure::Failure;
use crate::key_files::folder_of;
use std::fs::canonicalize;
use std::path::Path;

/// The folder beneath the served one that no client can read or write.
const RESERVED: &str = ".onrush";

/// Refuses a file of `option` in the served folder. Both its name and, if it is a link, its target
/// count. What does not exist is not refused.
pub(crate) fn check(option: &str, file: &Path, served: &Path) -> Result<(), String> {
    let Ok(served_path) = canonicalize(served) else {
        return Ok(());
    };
    let name = file.file_name().unwrap_or_default();
    let named = canonicalize(folder_of(file)).map(|folder| folder.join(name));
    let is_served = |path: &Path| {
        let inside = path.strip_prefix(&served_path);
        inside.is_ok_and(|inside| !inside.starts_with(RESERVED))
    };
    let paths = [named, canonicalize(file)];
    match paths.iter().flatten().any(|path| is_served(path)) {
        false => Ok(()),
        true => Err(format!(
            "--{option}: {} is in the served folder {}, where clients could read or replace it; \
             move it out of that folder",
            file.display(),
            served.display()
        )),
    }
}

/// Refuses settings whose users file or private key is an object.
pub(crate) fn check_settings(settings: &Settings) -> Result<(), Failure> {
    let Some(served) = settings.storage.folder() else {
        return Ok(());
    };
    let users = settings.access.iter().flat_map(|access| &access.file);
    let users = users.map(|file| ("auth-file", file));
    let pairs = settings.tls.iter().flat_map(|tls| match &tls.source {
        CertificateSource::Files(pairs) => &pairs[..],
        CertificateSource::SelfSigned(_) | CertificateSource::Acme(_) => &[],
    });
    let keys = pairs.map(|pair| ("tls-key", &pair.key));
    let mut files = users.chain(keys);
    files
        .try_for_each(|(option, file)| check(option, file, served))
        .map_err(Failure::usage)
}
