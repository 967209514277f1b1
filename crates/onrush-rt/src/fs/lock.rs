//! Locks of single bytes of a file, by which processes exclude each other.
//!
//! They are open file description locks (`F_OFD_SETLK`, fcntl(2)): they belong to the [`File`], not
//! to the process, they end with it, and the byte need not exist. One file thus holds any number of
//! locks, and a lock costs two system calls.

#![allow(unsafe_code)]

use super::{File, FileInner, kernel};
use std::io;
use std::os::fd::AsRawFd;

impl File {
    /// Locks the byte at `at` exclusively, for this `File`. `false`: another open of the file has
    /// it locked. Does not wait. The file must be open for writing.
    ///
    /// # Examples
    /// ```
    /// use onrush_rt::fs::{OpenHow, sim::SimFs};
    ///
    /// let root = SimFs::new(1).root()?;
    /// let one = root.open(b"locks", OpenHow::create_new(0o600))?;
    /// let other = root.open(b"locks", OpenHow { write: true, ..OpenHow::READ })?;
    /// assert!(one.try_lock_byte(7)?);
    /// assert!(!other.try_lock_byte(7)? && other.try_lock_byte(8)?);
    /// one.unlock_byte(7);
    /// assert!(other.try_lock_byte(7)?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_lock_byte(&self, at: u64) -> io::Result<bool> {
        match &self.inner {
            FileInner::Kernel(file) => match set(file, libc::F_OFD_SETLK, libc::F_WRLCK, at) {
                Err(error) if is_held(&error) => Ok(false),
                locked => locked.map(|()| true),
            },
            FileInner::Sim(file) => file.lock_byte(at, false),
        }
    }

    /// As [`File::try_lock_byte`], but waits until the byte is free. Blocks, perhaps for long: the
    /// holder may be a process that is stopped.
    pub fn lock_byte(&self, at: u64) -> io::Result<()> {
        match &self.inner {
            FileInner::Kernel(file) => loop {
                match set(file, libc::F_OFD_SETLKW, libc::F_WRLCK, at) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    locked => return locked,
                }
            },
            FileInner::Sim(file) => file.lock_byte(at, true).map(|_| ()),
        }
    }

    /// Unlocks the byte at `at`. It is no error if it is not locked.
    pub fn unlock_byte(&self, at: u64) {
        match &self.inner {
            // Fails only for arguments that are wrong.
            FileInner::Kernel(file) => {
                let _ = set(file, libc::F_OFD_SETLK, libc::F_UNLCK, at);
            }
            FileInner::Sim(file) => file.unlock_byte(at),
        }
    }
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn set(file: &kernel::File, command: i32, kind: i32, at: u64) -> io::Result<()> {
    let start = i64::try_from(at).ok().filter(|&at| at < i64::MAX);
    let start = start.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: 1,
        l_pid: 0, // As these commands require.
    };
    // SAFETY: both commands read one `flock`, which is alive for the call; the descriptor is
    // borrowed, so it is open.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw const lock) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
