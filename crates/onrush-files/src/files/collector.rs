//! The metrics of the budgets of which each client has a share.

use crate::files::shared::client_shares::ClientShares;
use crate::files::uploads::Uploads;
use crate::shares;
use onrush::metrics::{Collector, TextWriter};
use std::fmt;
use std::sync::Arc;

/// Shows the budgets, with those of unfinished uploads.
pub(in crate::files) struct SharesCollector {
    shares: Arc<ClientShares>,
    uploads: Arc<Uploads>,
}

impl SharesCollector {
    pub(in crate::files) fn new(
        shares: &Arc<ClientShares>,
        uploads: &Arc<Uploads>,
    ) -> SharesCollector {
        SharesCollector {
            shares: shares.clone(),
            uploads: uploads.clone(),
        }
    }
}

impl Collector for SharesCollector {
    fn collect(&self, text: &mut TextWriter) {
        let ClientShares {
            changes,
            watchers,
            files,
            locks,
            state_locks,
            listings,
            compression,
            directories,
            digests,
            documents,
        } = &*self.shares;
        let files = files.shares();
        let all = [
            changes,
            watchers,
            files,
            locks,
            state_locks,
            listings,
            compression,
            directories,
            digests,
            documents,
        ];
        let mut states: Vec<_> = all.iter().map(|shares| shares.state()).collect();
        states.extend(self.uploads.shares());
        shares::collect(&states, text);
    }
}

impl fmt::Debug for SharesCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharesCollector")
            .field("shares", &self.shares)
            .finish_non_exhaustive()
    }
}
