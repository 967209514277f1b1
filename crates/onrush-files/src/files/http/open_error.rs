//! Why a folder cannot be served, in one line.

use rustix::fs::Access;
use std::io;
use std::path::Path;

/// An error with one line that states what is wrong with a folder.
pub(in crate::files) fn open_error(
    dir: &Path,
    writable: bool,
    sink: bool,
    error: &io::Error,
) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound if writable => "cannot be created".to_owned(),
        io::ErrorKind::NotFound if sink => {
            "does not exist; a sink stores nothing and does not create it".to_owned()
        }
        io::ErrorKind::NotFound => {
            "does not exist; it is created only if writing is allowed".to_owned()
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "is not a folder".to_owned(),
        io::ErrorKind::PermissionDenied if writable && is_missing(dir) => {
            "cannot be created by this user: permission denied".to_owned()
        }
        io::ErrorKind::PermissionDenied if writable && has_own_folder(dir) => {
            "can be read and written by this user, but not its folder .onrush: permission denied"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied if writable => {
            "cannot be read and written by this user: permission denied".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "cannot be read by this user: permission denied".to_owned()
        }
        io::ErrorKind::ReadOnlyFilesystem => "is on a read-only file system".to_owned(),
        _ => format!("cannot be opened: {error}"),
    };
    io::Error::new(error.kind(), format!("{} {what}", dir.display()))
}

fn is_missing(dir: &Path) -> bool {
    dir.symlink_metadata()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Whether this user may change a folder, and what the store has in it is there already. Then only
/// that denies access.
fn has_own_folder(dir: &Path) -> bool {
    !is_missing(&dir.join(".onrush"))
        && rustix::fs::access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_folder_say_whether_it_is_missing() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let text = |dir: &str| open_error(Path::new(dir), true, false, &denied).to_string();
        assert!(text("/nowhere/at/all").contains("cannot be created by this user"));
        assert!(text("/").contains("cannot be read and written by this user"));
        let dir = testing::TempDir::new();
        let at = dir.path().to_str().expect("UTF-8");
        assert!(text(at).contains("cannot be read and written by this user"));
        std::fs::create_dir(dir.path().join(".onrush")).expect("a folder");
        assert!(text(at).contains("can be read and written by this user, but not its folder"));
    }
}
