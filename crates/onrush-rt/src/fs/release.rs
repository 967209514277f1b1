//! Frees the content of removed files without delaying a worker.
//!
//! The last close of a removed file frees its content, which takes 50 ms for 1 GB in memory. On a
//! pool thread this still delays a worker that shares the core: neither gives up the core before
//! its time slice ends. So in memory a pool thread frees a little at a time and rests in between.
//! One thread does this for all files of a [`Releaser`].
//!
//! This module decides when and where content is freed. [`File::release_on`](super::File) decides
//! which content.
#![allow(unsafe_code)]

use crate::blocking::BlockingPool;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are freed at a time, while no other file is queued: 50 to 100 µs.
const STEP_BYTES: u64 = 1 << 20;
/// The thread works for up to so many steps before it rests. The more files are queued, the more:
/// otherwise clients that replace large objects without a pause would fill the memory.
const STEPS_MAX: usize = 4;
/// The thread rests so many times as long as a single step takes.
const REST_FACTOR: u32 = 3;

/// `F_SETSIG` of `asm-generic/fcntl.h`; libc lacks it.
const F_SETSIG: libc::c_int = 10;

/// Frees the content of removed files on a pool. Shared by the files of one file system.
pub struct Releaser {
    pool: BlockingPool,
    /// Content is freed in steps. On a disk, each step would write to a journal.
    in_steps: bool,
    queue: Mutex<Queue>,
}

/// A value that is dropped after a file is closed.
pub(super) type Guard = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Queue {
    files: VecDeque<(OwnedFd, Option<Guard>)>,
    /// A job of the pool works on the queue.
    is_running: bool,
}

impl Releaser {
    /// A releaser that runs its jobs on `pool`. `is_in_memory`: the files are on a file system in
    /// memory ([`Dir::is_in_memory`](super::Dir::is_in_memory)).
    pub fn new(pool: &BlockingPool, is_in_memory: bool) -> Arc<Releaser> {
        Arc::new(Releaser {
            pool: pool.clone(),
            in_steps: is_in_memory,
            queue: Mutex::default(),
        })
    }

    /// Queues the last reference to a file without a name.
    pub(super) fn add(self: &Arc<Self>, file: OwnedFd, guard: Option<Guard>) {
        let mut queue = self.queue();
        queue.files.push_back((file, guard));
        if !std::mem::replace(&mut queue.is_running, true) {
            drop(queue);
            let releaser = self.clone();
            self.pool.run(move || releaser.run()).detach();
        }
    }

    fn run(&self) {
        loop {
            let (file, guard) = {
                let mut queue = self.queue();
                let Some(removed) = queue.files.pop_front() else {
                    queue.is_running = false;
                    return;
                };
                removed
            };
            match self.in_steps {
                true => free_in_steps(file, || self.queue().files.len()),
                false => drop(file),
            }
            drop(guard);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Releaser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Releaser").finish_non_exhaustive()
    }
}

/// Truncates a file without a name step by step, if nothing else has it open. Then closes it.
/// `queued` returns the number of files that wait.
fn free_in_steps(file: OwnedFd, queued: impl Fn() -> usize) {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(writable) = rustix::fs::open(path, flags, Mode::empty()) else {
        return;
    };
    drop(file);
    let Ok(found) = rustix::fs::fstat(&writable) else {
        return;
    };
    if found.st_nlink != 0 || !is_only_opener(&writable) {
        return; // Someone reads it. The last close frees it.
    }
    let mut size = u64::try_from(found.st_size).unwrap_or(0);
    while size > STEP_BYTES {
        let steps = (1 + queued()).min(STEPS_MAX) as u32;
        let bytes = STEP_BYTES * u64::from(steps);
        let begun = Instant::now();
        // A multiple of the step: no page is kept in part, so none is cleared in part. Pages that
        // the kernel is still sending are referenced by the socket and do not change.
        size = size.saturating_sub(bytes).next_multiple_of(STEP_BYTES);
        if rustix::fs::ftruncate(&writable, size).is_err() {
            return;
        }
        let rest = begun.elapsed() / steps * REST_FACTOR;
        std::thread::sleep(rest.min(Duration::from_millis(1)));
    }
}

/// Whether no other open file description refers to this file. The kernel grants a write lease only
/// then (fcntl(2), `F_SETLEASE`). The lease is returned at once: a file without a name cannot be
/// opened again.
fn is_only_opener(file: &OwnedFd) -> bool {
    let descriptor = file.as_raw_fd();
    // SAFETY: these commands take integers and touch no memory of the process. A signal that ends a
    // lease would be SIGURG, which is ignored by default, instead of SIGIO, which is not.
    unsafe {
        libc::fcntl(descriptor, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    /// A file in memory without a name, and its content.
    fn nameless(name: &str) -> (File, Vec<u8>) {
        let path = format!("/dev/shm/onrush-release-{}-{name}", std::process::id());
        let content: Vec<u8> = (0..5_000_000_u32).map(|at| at as u8).collect();
        std::fs::write(&path, &content).expect("room in memory");
        let file = File::open(&path).expect("it exists");
        std::fs::remove_file(&path).expect("it exists");
        (file, content)
    }

    #[test]
    fn file_with_a_reader_is_not_truncated() {
        let (file, content) = nameless("read");
        let (mut reader, _) = (
            File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap(),
            0,
        );
        free_in_steps(file.into(), || 0);
        let mut found = Vec::new();
        reader.read_to_end(&mut found).unwrap();
        assert!(found == content);
    }

    #[test]
    fn a_file_with_a_name_is_not_truncated() {
        let path = format!("/dev/shm/onrush-release-{}-named", std::process::id());
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        free_in_steps(File::open(&path).unwrap().into(), || 2);
        let found = std::fs::metadata(&path).unwrap().len();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, 3 << 20);
    }

    #[test]
    fn all_queued_files_are_freed() {
        let pool = BlockingPool::threads(2, 4);
        let releaser = Releaser::new(&pool, true);
        let guard: Guard = Arc::new(());
        for round in 0..3 {
            for name in ["a", "b", "c"] {
                releaser.add(
                    nameless(&format!("{round}{name}")).0.into(),
                    Some(guard.clone()),
                );
            }
            while releaser.queue().is_running {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(releaser.queue().files.is_empty());
            assert_eq!(Arc::strong_count(&guard), 1);
        }
    }

    /// The lease is what tells whether a file may be truncated, so the kernel must grant it.
    #[test]
    fn the_only_opener_is_found() {
        let (file, _) = nameless("only");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut writable = File::options().read(true).write(true).open(path).unwrap();
        let writable_fd = writable.try_clone().unwrap().into();
        assert!(!is_only_opener(&writable_fd), "two descriptions");
        drop(file);
        assert!(is_only_opener(&writable_fd));
        writable.write_all(b"still writable").unwrap();
    }
}
