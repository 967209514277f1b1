//! Changes of the entries of directories, as the kernel reports them (`inotify(7)`). It reports
//! those of all programs of this machine, but not those of other machines on a network file system.

use super::Dir;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// The buffer of [`Notifier::read`], in bytes. An event has at most 272.
const BUFFER_BYTES: usize = 16 * 1024;

/// What is reported of a directory.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Watches directories. Closed when dropped.
///
/// # Examples
/// ```
/// use onrush_rt::fs::{Dir, Notice, Notifier, OpenHow};
/// # let folder = std::env::temp_dir().join(format!("onrush-doc-notify-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
///
/// let (dir, notifier) = (Dir::open_root(&folder)?, Notifier::new()?);
/// let watch = notifier.add(&dir)?;
/// dir.create_dir(b"new", 0o755)?;
/// let mut names = Vec::new();
/// notifier.read(&mut |notice| {
///     if let Notice::Entry { watch: of, name, appeared: true, .. } = notice {
///         assert_eq!(of, watch);
///         names.push(name.to_vec());
///     }
/// })?;
/// assert_eq!(names, [b"new"]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Notifier(OwnedFd);

/// A watched directory of a [`Notifier`]. It is not used again for another directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(i32);

/// A report of [`Notifier::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'n> {
    /// An entry of a directory has changed. If neither of the two applies, its content was written
    /// and closed.
    Entry {
        /// The directory.
        watch: WatchId,
        /// The name of the entry.
        name: &'n [u8],
        /// Something got this name.
        appeared: bool,
        /// Something lost this name.
        left: bool,
    },
    /// The directory was moved: its path may name another one now.
    Moved(WatchId),
    /// Nothing more is reported about the directory: it was deleted, its file system was unmounted,
    /// or [`Notifier::remove`] was called.
    Ended(WatchId),
    /// Reports are missing, of any directory: there were too many.
    Missed,
}

impl Notifier {
    /// Fails if the user has too many (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Notifier> {
        Ok(Notifier(inotify::init(CreateFlags::CLOEXEC)?))
    }

    /// Watches `dir`, wherever its path leads later. A directory that is watched already has the
    /// same id. Fails with `Unsupported` in the simulator, and with `StorageFull` if the user has
    /// too many watches (`fs.inotify.max_user_watches`).
    pub fn add(&self, dir: &Dir) -> io::Result<WatchId> {
        let Some(fd) = dir.as_fd() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // The call takes a path. This one names the open directory itself.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        Ok(WatchId(inotify::add_watch(&self.0, path, EVENTS)?))
    }

    /// Ends a watch. A last [`Notice::Ended`] follows, unless the watch has ended by itself.
    pub fn remove(&self, watch: WatchId) {
        // The error means that it has ended.
        let _ = inotify::remove_watch(&self.0, watch.0);
    }

    /// Waits for reports, and calls `each` for every one that is there. Blocks its thread.
    pub fn read(&self, each: &mut dyn FnMut(Notice<'_>)) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.0, &mut buffer);
        loop {
            let event = match reader.next() {
                Err(Errno::INTR) => continue,
                event => event?,
            };
            let (events, watch) = (event.events(), WatchId(event.wd()));
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                each(Notice::Missed);
            } else if events.contains(ReadFlags::IGNORED) {
                each(Notice::Ended(watch));
            } else if events.contains(ReadFlags::MOVE_SELF) {
                each(Notice::Moved(watch));
            } else if let Some(name) = event.file_name() {
                each(Notice::Entry {
                    watch,
                    name: name.to_bytes(),
                    appeared: events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO),
                    left: events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM),
                });
            }
            if reader.is_buffer_empty() {
                return Ok(());
            }
        }
    }
}
