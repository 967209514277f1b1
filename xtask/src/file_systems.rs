//! The tests of the object store on each kind of file system that can be mounted here. They use the
//! folder for temporary files, which is a folder of that file system. A test asks itself what the
//! file system can do.

use crate::{
    binaries::{Binaries, Scope},
    packages,
    shell::{Outcome, capture, target},
    tally::Tally,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Programs that make and mount the file systems, and their Debian packages.
const PROGRAMS: [(&str, &str); 12] = [
    ("bindfs", "bindfs"),
    ("mergerfs", "mergerfs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.exfat", "exfatprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.vfat", "dosfstools"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkntfs", "ntfs-3g"),
    ("mount", "mount"),
    ("mount.exfat-fuse", "exfat-fuse"),
    ("mount.fuse", "fuse3"),
    ("mount.lowntfs-3g", "ntfs-3g"),
];

/// The size of the image of a file system.
const IMAGE_BYTES: u64 = 2 << 30;

/// What is mounted.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// An image that the command makes. It is mounted through a loop device.
    Image(&'static str),
    /// So many folders of the disk.
    Folders(usize),
    /// The folders of an overlay.
    Overlay,
    /// Nothing: it is in memory.
    Nothing,
}

/// A kind of file system: its name here, the type and the options of mount(8), and what is mounted.
type Kind = (&'static str, &'static str, &'static str, Source);

/// A kind whose files belong to another user. A cache refuses such a folder.
const FOREIGN: &str = "bindfs with another owner";

/// The beginnings of the names of tests of caches.
const CACHES: [&str; 2] = ["edge", "build_cache"];

/// The kinds. FAT, exFAT and NTFS have no modes, and the ones of all files are those of the mount:
/// a cache must not be open to other users. The clusters of exFAT have the size of a block of the
/// others, because a cache counts these.
const KINDS: [Kind; 16] = [
    ("ext4", "ext4", "loop", Source::Image("mkfs.ext4 -q -F")),
    ("xfs", "xfs", "loop", Source::Image("mkfs.xfs -q -f")),
    ("btrfs", "btrfs", "loop", Source::Image("mkfs.btrfs -q -f")),
    ("tmpfs", "tmpfs", "defaults", Source::Nothing),
    ("tmpfs without a limit", "tmpfs", "size=0", Source::Nothing),
    // It keeps no extended attributes.
    ("ramfs", "ramfs", "defaults", Source::Nothing),
    ("overlay", "overlay", "", Source::Overlay),
    ("bind", "none", "bind", Source::Folders(1)),
    (
        FOREIGN,
        "fuse.bindfs",
        "force-user=1234,force-group=1235",
        Source::Folders(1),
    ),
    (
        "bindfs without attributes",
        "fuse.bindfs",
        "xattr-none",
        Source::Folders(1),
    ),
    (
        "mergerfs",
        "fuse.mergerfs",
        "allow_other,use_ino",
        Source::Folders(2),
    ),
    ("ntfs-3g", "ntfs-3g", "loop,umask=077", Source::Image(NTFS)),
    (
        "ntfs-3g without case",
        "lowntfs-3g",
        "loop,umask=077,ignore_case",
        Source::Image(NTFS),
    ),
    (
        "exfat-fuse",
        "exfat-fuse",
        "loop,umask=077",
        Source::Image(EXFAT),
    ),
    ("exfat", "exfat", "loop,umask=077", Source::Image(EXFAT)),
    (
        "vfat",
        "vfat",
        "loop,umask=077",
        Source::Image("mkfs.vfat -F 32"),
    ),
];
const NTFS: &str = "mkntfs -q -Q -F";
const EXFAT: &str = "mkfs.exfat -c 4K";

/// Parts of the names of tests that use no folder of the disk.
const ELSEWHERE: [&str; 7] = [
    "::sim::",
    "::plain::",
    "::memory::",
    "faults::",
    "power_cut",
    "an_error_at_any_operation",
    "deep::",
];

/// Mounts each kind and runs the tests of the store on it. A kind that this kernel does not have is
/// skipped with a line; at least two must work.
pub(crate) fn run_all(binaries: &Binaries) -> Outcome<Tally> {
    if !packages::is_root()? {
        println!("skipped: only root mounts file systems");
        return Ok(Tally::of("skipped: only root mounts file systems"));
    }
    packages::need(&PROGRAMS)?;
    let top = target().join("file-systems");
    let (mut tested, mut sum) = (0, Tally::default());
    for kind in KINDS {
        let (name, ..) = kind;
        let mounted = match Mounted::new(&top, kind) {
            Ok(mounted) => mounted,
            Err(reason) => {
                println!("{name}: skipped: {}", reason.trim_end());
                continue;
            }
        };
        let caches = CACHES.iter().filter(|_| name == FOREIGN);
        let skipped: Vec<&str> = ELSEWHERE.iter().chain(caches).copied().collect();
        let configure = |command: &mut Command| {
            command.env("TMPDIR", &mounted.folder);
            for part in &skipped {
                command.args(["--skip", part]);
            }
        };
        let tally = binaries.run_with(Scope::Short, |name| name == "store", configure)?;
        println!("{name}: {tally}");
        tested += 1;
        sum.absorb(tally);
    }
    match tested {
        0 | 1 => Err("too few kinds of file systems can be mounted".to_owned()),
        _ => Ok(sum),
    }
}

/// A mounted file system. Dropping it unmounts it and removes what it consists of.
struct Mounted {
    /// Where the tests work.
    folder: PathBuf,
    /// Has the folder and what is mounted there.
    base: PathBuf,
}

impl Mounted {
    /// Mounts `kind` in a folder beneath `top`.
    fn new(top: &Path, (name, file_system, options, source): Kind) -> Outcome<Mounted> {
        let base = top.join(name.replace(' ', "-"));
        let folder = base.join("mounted");
        let create = |folder: &Path| fs::create_dir_all(folder).map_err(|error| error.to_string());
        let _ = capture(Command::new("umount").arg("-l").arg(&folder)); // Of a run that was killed.
        create(&folder)?;
        // From here on, a failure removes the folder.
        let mounted = Mounted { folder, base };
        let at = |part: String| mounted.base.join(part);
        let mut mount = Command::new("mount");
        mount.args(["-t", file_system]);
        if !options.is_empty() {
            mount.args(["-o", options]);
        }
        match source {
            Source::Image(make) => {
                let image = at("image".to_owned());
                let file = fs::File::create(&image).map_err(|error| error.to_string())?;
                let sized = file.set_len(IMAGE_BYTES);
                sized.map_err(|error| error.to_string())?;
                let mut words = make.split_whitespace();
                let mut making = Command::new(words.next().unwrap_or_default());
                match capture(making.args(words).arg(&image))? {
                    (true, _) => mount.arg(image),
                    (false, reason) => return Err(reason),
                }
            }
            Source::Folders(count) => {
                let folders: Vec<PathBuf> =
                    (0..count).map(|number| at(number.to_string())).collect();
                for folder in &folders {
                    create(folder)?;
                }
                let paths: Vec<String> = (folders.iter())
                    .map(|folder| folder.display().to_string())
                    .collect();
                mount.arg(paths.join(":"))
            }
            Source::Overlay => {
                let parts = ["lower", "upper", "work"].map(|part| at(part.to_owned()));
                for part in &parts {
                    create(part)?;
                }
                let [lower, upper, work] = parts.map(|part| part.display().to_string());
                let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
                mount.args(["-o", &options, "overlay"])
            }
            Source::Nothing => mount.arg(file_system),
        };
        match capture(mount.arg(&mounted.folder))? {
            (true, _) => Ok(mounted),
            (false, reason) => Err(reason),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It fails if nothing is mounted.
        let _ = capture(Command::new("umount").arg("-l").arg(&self.folder));
        // A program may still be writing what it has.
        if fs::remove_dir(&self.folder).is_ok() {
            let _ = fs::remove_dir_all(&self.base);
        }
    }
}
