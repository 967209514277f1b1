//! The budgets of which each client has a share ([`crate::shares`]), and their metrics.

use crate::files::archive::{COMPRESSION_BYTES_MAX, DIRECTORIES_BYTES_MAX};
use crate::files::listing::list::PAGES_BYTES_MAX;
use crate::files::listing::markdown::DOCUMENTS_BYTES_MAX;
use crate::files::put::terraform::STATE_LOCKS_MAX;
use crate::files::shared::open_files::OpenFiles;
use crate::files::shared::run_to_end::ABANDONED_MAX;
use crate::files::uploads::Uploads;
use crate::shares::{self, Shares};
use onrush::metrics::{Collector, TextWriter};
use onrush_rt::descriptors::Descriptors;
use std::fmt;
use std::sync::Arc;

/// The maximum number of locks of WebDAV.
const LOCKS_MAX: usize = 10_000;

/// The budgets of a served store.
#[derive(Debug)]
pub(in crate::files) struct ClientShares {
    /// Changes that go on without their clients.
    pub(in crate::files) changes: Arc<Shares>,
    /// Clients that watch folders.
    pub(in crate::files) watchers: Arc<Shares>,
    /// Open files, while descriptors are short.
    pub(in crate::files) files: Arc<OpenFiles>,
    /// Locks of WebDAV.
    pub(in crate::files) locks: Arc<Shares>,
    /// Locks of states of Terraform.
    pub(in crate::files) state_locks: Arc<Shares>,
    /// The memory of pages of listings, in bytes.
    pub(in crate::files) listings: Arc<Shares>,
    /// The memory of archives that are being compressed, in bytes.
    pub(in crate::files) compression: Arc<Shares>,
    /// The memory of the directories of zips that are being made, in bytes.
    pub(in crate::files) directories: Arc<Shares>,
    /// Digests that are being computed.
    pub(in crate::files) digests: Arc<Shares>,
    /// The memory of Markdown documents that are being rendered or sent, in bytes.
    pub(in crate::files) documents: Arc<Shares>,
}

impl ClientShares {
    pub(in crate::files) fn new(
        watchers_max: usize,
        digests_max: usize,
        descriptors: &Descriptors,
    ) -> Arc<ClientShares> {
        Arc::new(ClientShares {
            files: OpenFiles::new(descriptors),
            changes: Shares::new("abandoned_changes", ABANDONED_MAX),
            watchers: Shares::new("watchers", watchers_max),
            locks: Shares::new("locks", LOCKS_MAX),
            state_locks: Shares::new("state_locks", STATE_LOCKS_MAX),
            listings: Shares::new("listing_bytes", PAGES_BYTES_MAX),
            compression: Shares::new("archive_compression_bytes", COMPRESSION_BYTES_MAX),
            directories: Shares::new("archive_directory_bytes", DIRECTORIES_BYTES_MAX),
            digests: Shares::new("digests", digests_max),
            documents: Shares::new("document_bytes", DOCUMENTS_BYTES_MAX),
        })
    }
}

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
