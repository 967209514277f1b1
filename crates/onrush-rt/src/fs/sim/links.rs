//! Links of the simulator, and where its directories lie.

use super::disk::{Body, Disk, Node};
use super::errno;
use super::handle::{SimDir, check_mounts, entry};
use std::io;

impl Disk {
    /// The number of names that users see.
    pub(super) fn names(&self, inode: u64) -> u32 {
        let of = |node: &Node| match &node.body {
            Body::Dir(entries) => entries.now.values().filter(|&&to| to == inode).count(),
            _ => 0,
        };
        self.nodes.values().map(of).sum::<usize>() as u32
    }

    /// Whether a directory is `other` or lies beneath it.
    pub(super) fn is_within(&self, dir: u64, other: u64) -> bool {
        let above = |inode: u64| {
            let contains = |node: &Node| match &node.body {
                Body::Dir(entries) => entries.now.values().any(|&to| to == inode),
                _ => false,
            };
            let found = self.nodes.iter().find(|(_, node)| contains(node));
            found.map(|(&inode, _)| inode)
        };
        let mut here = Some(dir);
        while let Some(inode) = here {
            if inode == other {
                return true;
            }
            here = above(inode);
        }
        false
    }
}

impl SimDir {
    pub(in crate::fs) fn link(&self, name: &[u8], to_dir: &SimDir, to: &[u8]) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            if state.plain_renames {
                return Err(errno(libc::EPERM));
            }
            check_mounts(state, self.at.inode, to_dir.at.inode)?;
            state.disk.check_name(to)?;
            let inode = entry(state, self.at.inode, name)?;
            if state.disk.dir(inode).is_ok() {
                return Err(errno(libc::EPERM));
            }
            if state.disk.dir(to_dir.at.inode)?.now.contains_key(to) {
                return Err(errno(libc::EEXIST));
            }
            state.has_links = true;
            state.disk.node(inode)?.changed_ns = state.clock_ns;
            state.disk.set_entry(to_dir.at.inode, to, Some(inode))
        })
    }

    pub(in crate::fs) fn read_link(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let inode = entry(state, self.at.inode, name)?;
            match &state.disk.node(inode)?.body {
                Body::Symlink(target) => Ok(target.clone()),
                _ => Err(errno(libc::EINVAL)),
            }
        })
    }

    pub(in crate::fs) fn is_within(&self, other: &SimDir) -> io::Result<bool> {
        self.at.fs.atomically(self.at.epoch, |state| {
            Ok(state.disk.is_within(self.at.inode, other.at.inode))
        })
    }
}
