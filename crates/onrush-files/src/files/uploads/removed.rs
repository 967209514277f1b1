//! Unfinished uploads of users who have been removed. A later user of the same name must not get
//! them, and no other user can continue them.

use super::record::Record;
use super::{UploadId, Uploads};
use crate::files::receive::upload::ReceiveError;
use crate::shares::Holder;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The names of users who have been removed while the server runs: a request of such a user may
/// still be in progress.
#[derive(Default)]
pub(super) struct RemovedUsers(Mutex<HashSet<String>>);

impl RemovedUsers {
    pub(super) fn contains(&self, name: &str) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !names.is_empty() && names.contains(name)
    }
}

impl Uploads {
    /// From now on, nothing is recorded for the users `removed`. Those that `is_present` says are
    /// users again.
    pub(in crate::files) fn set_removed(
        &self,
        removed: &[String],
        is_present: impl Fn(&str) -> bool,
    ) {
        let names = &self.removed_users.0;
        let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|name| !is_present(name));
        names.extend(removed.iter().cloned());
    }

    pub(super) fn is_of_removed(&self, record: &Record) -> bool {
        let owner = record.owner.as_deref();
        owner.is_some_and(|owner| self.removed_users.contains(owner))
    }

    /// Removes the uploads of the users `removed`. Requests that use one of them end. Fails if the
    /// store does, so that some may be left.
    pub(in crate::files) async fn remove_of_users(
        &self,
        removed: &[String],
    ) -> onrush_store::Result<()> {
        let holders: Vec<Holder> = removed.iter().map(|name| Holder::user(name)).collect();
        let mut ids: Vec<UploadId> = Vec::new();
        let visit = async |id, found: super::Summary| {
            if holders.contains(&found.holder) {
                ids.push(id);
            }
        };
        self.each_record(visit).await?;
        let mut result = Ok(());
        for id in ids {
            let _guard = self.active.acquire(id).await;
            let ended = match self.read(id).await {
                Ok((record, version)) if self.is_of_removed(&record) => {
                    self.remove(id, &record, version).await
                }
                Ok(_) | Err(ReceiveError::Body(_)) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(ReceiveError::Store(error)) = ended {
                result = Err(error);
            }
        }
        result
    }
}
