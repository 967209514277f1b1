//! Moves in which two names exchange what they have, and whose process has ended (`move_records`).

use super::FolderInner;
use super::change;
use super::key_locks;
use super::locks::Locks;
use super::move_records::{Exchange, all};
use crate::error::Result;
use crate::key::Key;
use std::sync::Arc;

/// Completes the moves of dead processes that concern one of `keys`, or what is above or beneath
/// one of them, and waits for those of others. The caller has no locks.
pub(super) async fn complete(inner: &Arc<FolderInner>, keys: &[&Key]) -> Result<()> {
    let shared = inner.clone();
    for found in inner.pool.run(move || all(&shared)).await? {
        let concerns = |moved: &&Exchange| moved.concerns(keys, true);
        let Some(moved) = found.exchange.as_ref().filter(concerns) else {
            continue;
        };
        let (first, second) = moved.ordered();
        let locks = Locks::two(
            key_locks::acquire(inner, first).await,
            key_locks::acquire(inner, second).await,
        );
        let job = move |inner: &Arc<FolderInner>, _locks| found.complete(inner);
        change::run(inner, locks, job).await?;
    }
    Ok(())
}
