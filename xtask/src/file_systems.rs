//! The tests of the object store on each kind of file system that can be mounted here. They use the
//! folder for temporary files, which is a folder of that file system.

use crate::{
    binaries::{Binaries, Scope},
    packages,
    shell::{Outcome, capture, run, target},
    tally::Tally,
};
use std::{fs, path::Path, process::Command};

/// Programs that make the file systems, and their Debian packages.
const PROGRAMS: [(&str, &str); 4] = [
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mount", "mount"),
];

/// The size of the image of a file system.
const IMAGE_BYTES: u64 = 2 << 30;

/// The kinds. One with an image is made by the command and mounted through a loop device.
const KINDS: [(&str, Option<&str>); 5] = [
    ("ext4", Some("mkfs.ext4 -q -F")),
    ("xfs", Some("mkfs.xfs -q -f")),
    ("btrfs", Some("mkfs.btrfs -q -f")),
    ("tmpfs", None),
    ("overlay", None),
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
    for (kind, make) in KINDS {
        let folder = top.join(kind);
        let _mounted = match Mounted::new(kind, make, &folder) {
            Ok(mounted) => mounted,
            Err(reason) => {
                println!("{kind}: skipped: {}", reason.trim_end());
                continue;
            }
        };
        let configure = |command: &mut Command| {
            command.env("TMPDIR", &folder);
        };
        let tally = binaries.run_with(Scope::Short, |name| name == "store", configure)?;
        println!("{kind}: {tally}");
        tested += 1;
        sum.absorb(tally);
    }
    match tested {
        0 | 1 => Err("too few kinds of file systems can be mounted".to_owned()),
        _ => Ok(sum),
    }
}

/// A mounted file system. Dropping it unmounts it.
struct Mounted<'p> {
    folder: &'p Path,
}

impl Mounted<'_> {
    fn new<'p>(kind: &str, make: Option<&str>, folder: &'p Path) -> Outcome<Mounted<'p>> {
        let _ = capture(Command::new("umount").arg("-l").arg(folder));
        let create = |folder: &Path| fs::create_dir_all(folder).map_err(|error| error.to_string());
        create(folder)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", kind]);
        match make {
            Some(make) => {
                let image = folder.with_extension("image");
                let file = fs::File::create(&image).map_err(|error| error.to_string())?;
                file.set_len(IMAGE_BYTES)
                    .map_err(|error| error.to_string())?;
                let mut words = make.split_whitespace();
                let mut making = Command::new(words.next().unwrap_or_default());
                run(making.args(words).arg(&image))?;
                mount.args(["-o", "loop"]).arg(image);
            }
            None if kind == "overlay" => {
                let [lower, upper, work] =
                    ["lower", "upper", "work"].map(|part| folder.with_extension(part));
                for part in [&lower, &upper, &work] {
                    create(part)?;
                }
                let options = format!(
                    "lowerdir={},upperdir={},workdir={}",
                    lower.display(),
                    upper.display(),
                    work.display()
                );
                mount.args(["-o", &options, "overlay"]);
            }
            None => drop(mount.arg(kind)),
        }
        match capture(mount.arg(folder))? {
            (true, _) => Ok(Mounted { folder }),
            (false, reason) => Err(reason),
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(self.folder));
        let _ = fs::remove_file(self.folder.with_extension("image"));
    }
}
