//! What the file system of a folder can do. It is asked once per file system, by doing it there,
//! and not by the name of the file system: options and mounts on top decide as well.

use crate::common::TempDir;
use onrush_rt::fs::{Dir, OpenHow};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// What a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ability {
    /// Two names of which only the case differs are two files.
    Case,
    /// Every byte but `/` and NUL may be in a name.
    AnyName,
    /// `RENAME_EXCHANGE`.
    Exchange,
    /// A rename to a folder that is not empty does not fail with `EXDEV`.
    NotEmpty,
    /// Extended attributes in the `user.` namespace.
    Attributes,
    /// What creates a file in a folder with a default access control list gets that.
    AccessLists,
    /// The mode of a file can be set, and a new file has that of the umask.
    Modes,
    /// So can its owner and its group, and folders with `S_ISGID` pass theirs on.
    Owners,
    /// Symbolic links.
    Symlinks,
    /// Hard links, which are one inode.
    HardLinks,
    /// Named pipes.
    Fifos,
    /// An open file whose name was removed has no other name in its folder.
    NamelessFiles,
    /// Times are not those of the last whole second.
    FineTimes,
    /// A worker may open and read files ([`Dir::is_local`]).
    Local,
    /// It says how much room there is.
    Size,
}

const ALL: [Ability; 15] = [
    Ability::Case,
    Ability::AnyName,
    Ability::Exchange,
    Ability::NotEmpty,
    Ability::Attributes,
    Ability::AccessLists,
    Ability::Modes,
    Ability::Owners,
    Ability::Symlinks,
    Ability::HardLinks,
    Ability::Fifos,
    Ability::NamelessFiles,
    Ability::FineTimes,
    Ability::Local,
    Ability::Size,
];

/// Whether the file system of the folder for temporary files lacks an ability that a test needs.
/// Then it says so.
pub(crate) fn temp_lacks(wanted: &[Ability]) -> bool {
    lacks(&std::env::temp_dir(), wanted)
}

/// As [`temp_lacks`], for the file system of the folder `parent`.
pub(crate) fn lacks(parent: &Path, wanted: &[Ability]) -> bool {
    static KNOWN: Mutex<Option<HashMap<(PathBuf, Ability), bool>>> = Mutex::new(None);
    let has = |ability: Ability| {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        *known
            .entry((parent.to_path_buf(), ability))
            .or_insert_with(|| ability.is_at(TempDir::beneath(parent).path()))
    };
    let missing = wanted.iter().find(|&&ability| !has(ability));
    if let Some(missing) = missing {
        println!("skipped: the file system has no {missing:?}");
    }
    missing.is_some()
}

impl Ability {
    /// Tries it in the empty folder `dir`.
    fn is_at(self, dir: &Path) -> bool {
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, "a").expect("a file");
        let root = Dir::open_root(dir).expect("a folder");
        let open = || root.open(b"a", OpenHow::READ).expect("the file");
        match self {
            Ability::Case => !dir.join("A").exists(),
            Ability::AnyName => [&b"\xff"[..], b"\n", b":?*\\\"<>|"].iter().all(|name| {
                let made = fs::write(dir.join(OsStr::from_bytes(name)), "");
                let mut names = fs::read_dir(dir).expect("a folder");
                made.is_ok()
                    && names.any(|entry| entry.expect("an entry").file_name().as_bytes() == *name)
            }),
            Ability::Exchange => {
                fs::write(&b, "b").expect("a file");
                root.exchange(b"a", &root, b"b").is_ok()
            }
            Ability::NotEmpty => {
                fs::create_dir_all(b.join("c")).expect("a folder");
                fs::create_dir(dir.join("d")).expect("a folder");
                let renamed = fs::rename(dir.join("d"), &b);
                renamed.is_err_and(|error| error.kind() != std::io::ErrorKind::CrossesDevices)
            }
            Ability::Attributes => open().set_attribute(c"user.onrush-test", b"x").is_ok(),
            Ability::AccessLists => {
                let list = crate::rights::default_list();
                let folder = root.open(b".", OpenHow::READ).expect("the folder");
                let set = folder.set_attribute(c"system.posix_acl_default", &list);
                fs::write(&b, "b").expect("a file");
                let found = root.open(b"b", OpenHow::READ).expect("the file");
                // Without the umask, which FUSE applies nevertheless.
                let mode = fs::metadata(&b).expect("the file").mode() & 0o777;
                set.is_ok() && mode == 0o660 && matches!(found.access_list(), Ok(Some(_)))
            }
            Ability::Modes => [0o640, 0o600].iter().all(|&mode| {
                let set = fs::set_permissions(&a, Permissions::from_mode(mode));
                set.is_ok() && fs::metadata(&a).expect("the file").mode() & 0o777 == mode
            }),
            Ability::Owners => {
                let set = chown(dir, Some(1234), Some(2345))
                    .and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o2755)));
                fs::write(&b, "b").expect("a file");
                let found = [dir, &b].map(|path| fs::metadata(path).expect("it").gid());
                let user = fs::metadata(dir).expect("the folder").uid();
                set.is_ok() && (user, found) == (1234, [2345; 2])
            }
            Ability::Symlinks => symlink("a", &b).is_ok(),
            Ability::HardLinks => {
                let inode = |path| fs::metadata(path).expect("a file").ino();
                fs::hard_link(&a, &b).is_ok() && inode(&a) == inode(&b)
            }
            Ability::Fifos => Command::new("mkfifo")
                .arg(&b)
                .status()
                .is_ok_and(|status| status.success()),
            Ability::NamelessFiles => {
                let _open = open();
                fs::remove_file(&a).expect("a file");
                fs::read_dir(dir).expect("a folder").next().is_none()
            }
            Ability::FineTimes => (0..5).any(|number| {
                let file = File::create(dir.join(number.to_string())).expect("a file");
                file.metadata().expect("the file").mtime_nsec() != 0
            }),
            Ability::Local => root.is_local(),
            Ability::Size => root.free_bytes().is_ok_and(|bytes| bytes < i64::MAX as u64),
        }
    }
}

/// Otherwise tests would be skipped everywhere. Only root may set owners.
#[test]
fn a_file_system_in_memory_has_all_abilities() {
    let memory = Path::new("/dev/shm");
    let is_root = fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0);
    let wanted = ALL
        .into_iter()
        .filter(|it| is_root || *it != Ability::Owners);
    for ability in wanted {
        assert!(!lacks(memory, &[ability]), "{ability:?}");
    }
}
