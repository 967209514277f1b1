//! Copies the bytes of a file into a staged file, within the kernel if possible, in steps between
//! which the pool or the worker does other work.

use super::FolderInner;
use super::staged::StagedFile;
use crate::error::{Result, StoreError};
use crate::key::Key;
use onrush_rt::coop;
use onrush_rt::fs::File;
use std::sync::Arc;

/// The bytes that one job copies. Other jobs of the pool run between them.
const STEP_BYTES: u64 = 32 << 20;
/// The same on a worker.
const INLINE_STEP_BYTES: u64 = 128 << 10;

/// Copies the first `bytes` of `source` to the position `at` of a staged file, which becomes the
/// object `key`, and adds them to its checksum, if it has one. Returns both files. On failure, this
/// removes the staged file before it returns, unless earlier bytes of it are kept.
pub(super) async fn append(
    inner: &Arc<FolderInner>,
    key: &Key,
    mut staged: StagedFile,
    at: u64,
    mut source: File,
    bytes: u64,
) -> Result<(StagedFile, File)> {
    let pool = inner.change_pool.clone();
    let step_bytes = match pool.is_inline() {
        true => INLINE_STEP_BYTES,
        false => STEP_BYTES,
    };
    let mut done = 0;
    while done < bytes {
        let step = (bytes - done).min(step_bytes);
        let key = key.clone();
        let job = move |inner: &Arc<FolderInner>| {
            // Others have used space since the first check.
            let copied = (inner.check_free(&key, step))
                .and_then(|()| copy_step(&mut staged, at + done, &source, done, step));
            match copied {
                Ok(copied) => Ok((staged, source, copied)),
                Err(error) => {
                    staged.remove_unless_kept();
                    Err(error)
                }
            }
        };
        let copied;
        (staged, source, copied) = inner.run(&pool, job).await?;
        done += copied;
        if pool.is_inline() {
            coop::spend(copied as usize);
            std::future::poll_fn(coop::poll_proceed).await;
        }
    }
    Ok((staged, source))
}

fn copy_step(
    staged: &mut StagedFile,
    at: u64,
    source: &File,
    from: u64,
    bytes: u64,
) -> Result<u64> {
    let copied = staged.file.copy_from(source, from, at, bytes);
    let copied = copied.map_err(StoreError::from_open_file)?;
    if copied == 0 {
        return Err(StoreError::Changed); // Another program has truncated it.
    }
    if let Some(checksum) = &mut staged.checksum {
        let added = checksum.add_file(source, from..from + copied);
        added.map_err(StoreError::from_open_file)?;
    }
    Ok(copied)
}
