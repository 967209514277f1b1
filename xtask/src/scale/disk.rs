//! A storage daemon on a disk without space: its file moves to a small tmpfs for a while.
//!
//! This is worse than a full cluster (`Cluster::set_full`): no ratio stops the writes in time. Ceph
//! ends the daemon at the first write that fails.

use crate::ceph::Cluster;
use crate::shell::{Outcome, run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the disk has beyond the present data.
const SPARE_BYTES: u64 = 32 << 20;
/// More than a daemon's file can have.
const LARGE_BYTES: u64 = 16 << 30;

/// The file of a daemon, on a tmpfs. Dropping it stops the daemon and moves the file back.
pub(super) struct SmallDisk<'a> {
    cluster: &'a Cluster,
    daemon: &'a str,
    file: PathBuf,
    mount: PathBuf,
}

impl SmallDisk<'_> {
    /// Stops the daemon, moves its file and starts it again.
    pub(super) fn new<'a>(cluster: &'a Cluster, daemon: &'a str) -> Outcome<SmallDisk<'a>> {
        cluster.stop(daemon, "TERM")?;
        let file = cluster.path(daemon).join("block");
        let mount = cluster.path(&format!("{daemon}-disk"));
        let shown = mount.display().to_string();
        let failed = |error: std::io::Error| format!("{shown}: {error}");
        fs::create_dir_all(&mount).map_err(failed)?;
        let used = fs::metadata(&file).map_err(failed)?.blocks() * 512;
        let size = format!("size={}", used + SPARE_BYTES);
        let mut tool = Command::new("mount");
        run(tool.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&mount))?;
        let disk = SmallDisk {
            cluster,
            daemon,
            file,
            mount,
        };
        move_file(&disk.file, &disk.moved())?;
        std::os::unix::fs::symlink(disk.moved(), &disk.file).map_err(failed)?;
        cluster.start_osd(daemon)?;
        cluster.wait_until_whole()?;
        Ok(disk)
    }

    fn moved(&self) -> PathBuf {
        self.mount.join("block")
    }

    /// Writes objects until the daemon has ended for lack of space. Space in its file that deleted
    /// objects have left is used up first.
    pub(super) fn fill(&self) -> Outcome {
        let (cluster, daemon) = (self.cluster, self.daemon);
        cluster.fill_until(|| !cluster.is_running(daemon))
    }

    /// Gives the disk space, and starts the daemon, which then does what it has missed. Afterwards
    /// its file moves back.
    pub(super) fn repair(self) -> Outcome {
        let (cluster, daemon) = (self.cluster, self.daemon);
        let size = format!("remount,size={LARGE_BYTES}");
        run(Command::new("mount").args(["-o", &size]).arg(&self.mount))?;
        cluster.start_osd(daemon)?;
        cluster.wait_until_whole()?;
        cluster.stop(daemon, "TERM")?;
        drop(self);
        cluster.start_osd(daemon)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let stopped = self.cluster.stop(self.daemon, "KILL");
        let moved = match self.moved().exists() {
            true => fs::remove_file(&self.file)
                .map_err(|error| error.to_string())
                .and_then(|()| move_file(&self.moved(), &self.file)),
            false => Ok(()),
        };
        let unmounted = run(Command::new("umount").arg(&self.mount));
        if let Err(problem) = stopped.and(moved).and(unmounted) {
            eprintln!("{}: {problem}", self.mount.display());
        }
    }
}

/// Moves a sparse file to another file system.
fn move_file(from: &Path, to: &Path) -> Outcome {
    run(Command::new("cp").arg("--sparse=always").args([from, to]))?;
    fs::remove_file(from).map_err(|error| format!("{}: {error}", from.display()))
}
