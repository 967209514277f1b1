//! The rights of files: mode, owner, group, and access control lists (acl(5)), which the kernel
//! shows as extended attributes.

use super::{Dir, DirInner, File, FileInner};
use std::ffi::CStr;
use std::io;

/// The list of a file.
const ACCESS_LIST: &CStr = c"system.posix_acl_access";
/// The list that new files and directories of a directory get.
const DEFAULT_LIST: &CStr = c"system.posix_acl_default";

/// The length of the longest list that is read, in bytes: that of any attribute (`XATTR_SIZE_MAX`).
const LIST_BYTES_MAX: usize = 64 * 1024;

impl File {
    /// Sets the permission bits (`fchmod(2)`). `EPERM` for a file of another user.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        match &self.inner {
            FileInner::Kernel(file) => file.set_mode(mode),
            FileInner::Sim(file) => file.set_mode(mode),
        }
    }

    /// Sets the user and the group, where given (`fchown(2)`). `EPERM` unless the process is
    /// privileged, or sets one of its own groups.
    pub fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        match &self.inner {
            FileInner::Kernel(file) => file.set_owner(user, group),
            FileInner::Sim(file) => file.set_owner(user, group),
        }
    }

    /// The access control list of the file, in the form of the kernel. `None` if it has only
    /// permission bits, or the file system has no such lists.
    pub fn access_list(&self) -> io::Result<Option<Vec<u8>>> {
        self.attribute(ACCESS_LIST, LIST_BYTES_MAX)
    }

    /// Sets the access control list, and with it the permission bits.
    pub fn set_access_list(&self, list: &[u8]) -> io::Result<()> {
        self.set_attribute(ACCESS_LIST, list)
    }

    /// As [`Dir::default_access_list`], of an open directory.
    pub fn default_access_list(&self) -> io::Result<Option<Vec<u8>>> {
        self.attribute(DEFAULT_LIST, LIST_BYTES_MAX)
    }

    /// Sets the list of [`File::default_access_list`].
    pub fn set_default_access_list(&self, list: &[u8]) -> io::Result<()> {
        self.set_attribute(DEFAULT_LIST, list)
    }
}

impl Dir {
    /// The access control list of the file `name`, as [`File::access_list`]. Opens nothing, so it
    /// needs no permission to read the file. `ENOSYS` before Linux 6.13, where a sandbox does not
    /// permit the call, and in a simulation: open the file instead.
    pub fn entry_access_list(&self, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.entry_attribute(name, ACCESS_LIST, LIST_BYTES_MAX),
            DirInner::Sim(_) => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
    }

    /// The access control list that the kernel gives to what is created in this directory, before
    /// the bits of its mode. `None` if there is none, or the file system has no such lists.
    pub fn default_access_list(&self) -> io::Result<Option<Vec<u8>>> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.attribute(DEFAULT_LIST, LIST_BYTES_MAX),
            DirInner::Sim(_) => Ok(None),
        }
    }

    /// Whether this process may create and remove entries, as far as the rights of the directory
    /// say it (`faccessat2(2)`). `true` before Linux 5.8, where it is not known. A directory with
    /// the sticky bit (inode(7)) may still refuse it.
    pub fn may_change(&self) -> io::Result<bool> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.may_change(),
            DirInner::Sim(_) => Ok(true),
        }
    }

    /// Whether files of this directory's file system can have access control lists. May block.
    pub fn keeps_access_lists(&self) -> bool {
        match &self.0 {
            DirInner::Kernel(dir) => dir.knows_attribute(DEFAULT_LIST),
            DirInner::Sim(_) => false,
        }
    }

    /// Gives the directory these permission bits and no default access control list: what is
    /// created in it inherits nothing.
    pub fn set_private(&self, mode: u32) -> io::Result<()> {
        let DirInner::Kernel(dir) = &self.0 else {
            return Ok(()); // Nothing is inherited there.
        };
        match dir.remove_attribute(DEFAULT_LIST) {
            Err(error)
                if !matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) =>
            {
                Err(error)
            }
            _ => dir.set_mode(mode),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::super::{Dir, OpenHow};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use testing::TempDir;

    #[test]
    fn a_directory_of_another_user_may_not_be_changed() {
        let temp = TempDir::new();
        let dir = Dir::open_root(temp.path()).unwrap();
        assert!(dir.may_change().unwrap());
        dir.open(b"file", OpenHow::create_new(0o644)).unwrap();
        std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o755)).unwrap();
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            return;
        }
        // A thread of its own, because the system call changes the user of one thread.
        let as_other = std::thread::spawn(move || {
            // SAFETY: setresuid(2) gets numbers and changes only the rights of this thread, which
            // ends after this.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
            (result, dir.may_change().unwrap())
        });
        assert_eq!(as_other.join().unwrap(), (0, false));
    }
}
