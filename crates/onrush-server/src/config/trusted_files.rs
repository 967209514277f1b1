//! The files that options name decide whom the server trusts, and some have secrets. None may be an
//! object: a client could read it, or replace it by its own, which takes effect with the next
//! SIGHUP.
//!
//! [`TrustedFiles`] has all of them, whatever the option is: `options` lists the options whose
//! values are paths. They are checked at start, by `onrush check` and on SIGHUP, and each again
//! when its file is read, because a link may lead into the folder since the start.

use crate::options::{ConfigFile, Options};
use crate::stores::storage::Storage;
use onrush_files::Allow;
use onrush_store::ShownNames;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// The folder beneath the served one that no client can read or write.
const RESERVED: &str = ".onrush";
/// Options whose files must not be objects that clients can read, either.
const SECRET: &[&str] = &["auth_file", "tls_key", "edge"];
/// The maximum number of links in a path, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// The files that options name, and the folder that they must not be in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrustedFiles {
    files: Vec<TrustedFile>,
    /// The served folder, if it is one.
    served: Option<PathBuf>,
    /// Clients may change objects.
    is_written: bool,
    /// The names that begin with a dot and are served.
    shown: ShownNames,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TrustedFile {
    option: &'static str,
    path: PathBuf,
    is_secret: bool,
}

impl TrustedFiles {
    pub(crate) fn new(
        options: &Options,
        storage: &Storage,
        allow: Allow,
        shown: ShownNames,
    ) -> TrustedFiles {
        let named = options
            .files()
            .into_iter()
            .map(|(option, path)| TrustedFile {
                option,
                path: path.to_owned(),
                is_secret: SECRET.contains(&option),
            });
        let config = options.config.as_ref();
        let config = config.map(|ConfigFile { path, has_password }| TrustedFile {
            option: "config",
            path: path.clone(),
            is_secret: *has_password,
        });
        TrustedFiles {
            files: named.chain(config).collect(),
            served: storage.folder().map(Path::to_owned),
            is_written: allow != Allow::default(),
            shown,
        }
    }

    /// Refuses files that clients could replace, or read if they have secrets. An error is one
    /// line.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_those(|_| true)
    }

    /// As [`TrustedFiles::check`], for the files of these options only.
    pub(crate) fn check_of(&self, options: &[&str]) -> Result<(), String> {
        self.check_those(|file| options.contains(&file.option))
    }

    fn check_those(&self, is_checked: impl Fn(&TrustedFile) -> bool) -> Result<(), String> {
        let Some(served) = &self.served else {
            return Ok(());
        };
        let top = resolve(served).1;
        for file in self.files.iter().filter(|file| is_checked(file)) {
            if self.is_exposed(file, &top) {
                return Err(format!(
                    "--{}: {} is in the served folder {}, where clients could read or replace it; \
                     move it out of that folder",
                    file.option.replace('_', "-"),
                    file.path.display(),
                    served.display()
                ));
            }
        }
        Ok(())
    }

    /// `top`: the served folder without links.
    fn is_exposed(&self, file: &TrustedFile, top: &Path) -> bool {
        let (names, _) = resolve(&file.path);
        let mut inside = names.iter().filter_map(|name| name.strip_prefix(top).ok());
        inside.any(|name| {
            let first = name.components().next();
            let first = first.map(|first| first.as_os_str().as_encoded_bytes());
            match first {
                // The served folder itself, which no client replaces.
                None => false,
                Some(first) if first == RESERVED.as_bytes() => false,
                Some(_) if file.is_secret => true,
                Some(first) => self.is_written && !self.shown.hide(first),
            }
        })
    }
}

/// The names that are looked up on the way to a file, each without links in the folders before it,
/// and the place of the file itself. Names that do not exist are taken for no links.
fn resolve(path: &Path) -> (Vec<PathBuf>, PathBuf) {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    // In reverse order, so that the next one is the last.
    let mut rest = parts(&absolute);
    let (mut names, mut at, mut links) = (Vec::new(), PathBuf::from("/"), 0);
    while let Some(part) = rest.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(name)) => {
                let name = at.join(name);
                names.push(name.clone());
                match std::fs::read_link(&name) {
                    Ok(target) if links < LINKS_MAX => {
                        links += 1;
                        rest.extend(parts(&target));
                    }
                    _ => at = name,
                }
            }
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    (names, at)
}

#[cfg(test)]
mod tests;
