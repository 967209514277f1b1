//! Links, and where directories lie: what a path does not say.

use super::{Dir, DirInner, check_name, either};
use std::io;

impl Dir {
    /// Gives the file `name` of this directory another name `to` in `to_dir`, which must be free
    /// (`linkat(2)`). A symbolic link is not followed. `EPERM`, `EOPNOTSUPP` or `EMLINK` where the
    /// file system cannot.
    pub fn link(&self, name: &[u8], to_dir: &Dir, to: &[u8]) -> io::Result<()> {
        check_name(name)?;
        check_name(to)?;
        match (&self.0, &to_dir.0) {
            (DirInner::Kernel(a), DirInner::Kernel(b)) => a.link(name, b, to),
            (DirInner::Sim(a), DirInner::Sim(b)) => a.link(name, b, to),
            _ => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// The path in the symbolic link `name` (`readlinkat(2)`). `EINVAL` if it is none.
    pub fn read_link(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        check_name(name)?;
        either!(&self.0, DirInner, dir => dir.read_link(name))
    }

    /// The paths in this directory at which something is mounted, relative to it
    /// (proc_pid_mountinfo(5)). `None` if the system does not say it, and in a simulation.
    pub fn mounted_beneath(&self) -> Option<Vec<Vec<u8>>> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.mounted_beneath(),
            DirInner::Sim(_) => None,
        }
    }

    /// Whether this directory is `other` or lies beneath it, whatever paths and bind mounts have
    /// led to both: looks at each directory above this one (`..`), and at the table of mounts.
    /// Another program may move one meanwhile.
    pub fn is_within(&self, other: &Dir) -> io::Result<bool> {
        match (&self.0, &other.0) {
            (DirInner::Kernel(a), DirInner::Kernel(b)) => a.is_within(b),
            (DirInner::Sim(a), DirInner::Sim(b)) => a.is_within(b),
            _ => Ok(false),
        }
    }
}
