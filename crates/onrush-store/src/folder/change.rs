//! Runs changes under the locks of their keys: those of this process and those of others.
//!
//! Two processes that change one folder lock a byte of the file `.onrush/locks` for each change,
//! from the check of the condition until the change is made. The position of the byte is a hash of
//! the key, so both name a key alike and keys do not disturb each other. The kernel unlocks the
//! byte when a process ends. No other program may remove the file while a server runs.
//!
//! Locking takes two system calls and never waits, unless another process changes the same key.
//! Then a thread of the pool waits for it: at most a quarter of them at a time, because a holder
//! that is stopped never unlocks, and the others still serve all other keys.
//!
//! Processes never wait for each other in a circle. The bytes of two keys are locked in their
//! order, and permits to wait are not in that order: a change that waits for a permit or for a
//! thread of the pool holds no byte, and the thread that has waited for the bytes makes the change.
//! A lock that is held for longer, that of a kept file, is never waited for.

use super::locks::Locks;
use super::{FolderInner, again};
use crate::error::Result;
use std::sync::Arc;

/// Runs a change on its pool, with `locks` against other processes as well. `job` keeps them until
/// the change is made.
pub(super) async fn run<T, F>(inner: &Arc<FolderInner>, mut locks: Locks, job: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Arc<FolderInner>, Locks) -> Result<T> + Send + 'static,
{
    again::look_if_due(inner)?;
    let shared = inner.clone();
    let at_once = move || match locks.exclude_processes(&shared, false) {
        Ok(true) => Ok(Ok(job(&shared, locks))),
        Ok(false) => Ok(Err((locks, job))),
        Err(error) => Err(error),
    };
    let (mut locks, job) = match inner.change_pool.run(at_once).await?? {
        Ok(done) => return done,
        Err(waits) => waits,
    };
    let permit = inner.process_locks.wait_permits.acquire().await;
    let wait = move |inner: &Arc<FolderInner>| {
        let excluded = locks.exclude_processes(inner, true);
        drop(permit);
        excluded.and_then(|_| job(inner, locks))
    };
    inner.run(&inner.pool, wait).await
}
