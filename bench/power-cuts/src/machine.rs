//! A real file system on a disk of ours: the disk is a file in a FUSE file system, and a loop
//! device on that file is mounted.

use crate::disk::Disk;
use crate::fuse;
use fuser::BackgroundSession;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use xtask::shell::{Outcome, capture};

/// A kind of file system.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// The program that creates one, with its options. Nothing is left for later: what the kernel
    /// does in the background would be most of the log.
    create: &'static [&'static str],
}

pub(crate) const KINDS: [Kind; 3] = [
    Kind {
        name: "ext4",
        create: &[
            "mkfs.ext4",
            "-q",
            "-F",
            "-E",
            "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
        ],
    },
    Kind {
        name: "xfs",
        create: &["mkfs.xfs", "-q", "-f", "-K"],
    },
    Kind {
        name: "btrfs",
        create: &["mkfs.btrfs", "-q", "-f", "-K"],
    },
];

/// The size of a disk. The minimum of xfs is 300 MiB.
pub(crate) const DISK_BYTES: u64 = 512 << 20;
/// A device may be in use for a moment after its file system is unmounted.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// A disk whose file system is mounted. Dropping it unmounts everything.
pub(crate) struct Machine {
    /// Where the file of the disk is.
    disk: PathBuf,
    /// The top folder of the file system.
    pub(crate) root: PathBuf,
    is_mounted: bool,
    session: Option<BackgroundSession>,
}

impl Machine {
    /// Creates a file system on an empty disk, and mounts it. `folder` is for mount points.
    pub(crate) fn create(kind: &Kind, disk: &Disk, folder: &Path) -> Outcome<Machine> {
        let machine = Machine::attach(disk, folder)?;
        let mut create = Command::new(kind.create[0]);
        create.args(&kind.create[1..]).arg(machine.image());
        run_quietly(&mut create)?;
        machine.mount(kind)
    }

    /// Mounts the file system on a disk, which recovers it.
    pub(crate) fn start(kind: &Kind, disk: &Disk, folder: &Path) -> Outcome<Machine> {
        Machine::attach(disk, folder)?.mount(kind)
    }

    fn attach(disk: &Disk, folder: &Path) -> Outcome<Machine> {
        let (place, root) = (folder.join("disk"), folder.join("root"));
        for path in [&place, &root] {
            fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let session = fuse::mount(disk, DISK_BYTES, &place);
        let session = session.map_err(|error| format!("FUSE needs root and /dev/fuse: {error}"))?;
        Ok(Machine {
            disk: place,
            root,
            is_mounted: false,
            session: Some(session),
        })
    }

    fn image(&self) -> PathBuf {
        self.disk.join(fuse::NAME)
    }

    fn mount(mut self, kind: &Kind) -> Outcome<Machine> {
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.name, "-o", "loop,noatime"]);
        run_quietly(mount.arg(self.image()).arg(&self.root))?;
        self.is_mounted = true;
        Ok(self)
    }

    /// Writes everything to the disk.
    pub(crate) fn sync(&self) -> Outcome {
        run_quietly(Command::new("sync").arg("-f").arg(&self.root))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut unmounted = match self.is_mounted {
            true => unmount(&self.root),
            false => Ok(()),
        };
        unmounted = unmounted.and_then(|()| unmount(&self.disk));
        match unmounted {
            Ok(()) => drop(self.session.take().map(BackgroundSession::join)),
            Err(problem) => eprintln!("{problem}"),
        }
    }
}

/// Unmounts a folder when it is not in use any more.
fn unmount(folder: &Path) -> Outcome {
    let end = Instant::now() + BUSY_MAX;
    loop {
        let unmounted = run_quietly(Command::new("umount").arg(folder));
        if unmounted.is_ok() || Instant::now() > end {
            return unmounted;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program. Its output is only shown if it fails.
fn run_quietly(command: &mut Command) -> Outcome {
    match capture(command)? {
        (true, _) => Ok(()),
        (false, text) => Err(format!("{}: {}", xtask::shell::shown(command), text.trim())),
    }
}
