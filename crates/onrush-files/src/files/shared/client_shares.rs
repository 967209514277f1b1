//! The budgets of which each client has a share ([`crate::shares`]).

use crate::files::shared::open_files::OpenFiles;
use crate::shares::Shares;
use onrush_rt::descriptors::Descriptors;
use onrush_store::ListHow;
use std::sync::Arc;

/// The maximum memory of all archives for compression: eight of them at a time.
pub(in crate::files) const COMPRESSION_BYTES_MAX: usize = 32 << 20;

/// The maximum memory for the directories of all zips: 400,000 entries together, or 512 small zips.
pub(in crate::files) const DIRECTORIES_BYTES_MAX: usize = 32 << 20;

/// The maximum memory of all pages that are being sent, and of the names and entries of folders
/// that are being read: about ten large folders, or two hundred pages with 1000 entries.
pub(in crate::files) const PAGES_BYTES_MAX: usize = 40 << 20;

/// The maximum memory of all documents that are being rendered or sent.
const DOCUMENTS_BYTES_MAX: usize = 16 << 20;

/// The maximum number of locks, of which each client has a share. No quota counts them.
pub(in crate::files) const STATE_LOCKS_MAX: usize = ListHow::LIMIT_MAX;

/// The number of changes that may go on without their clients. A client that has its share of them
/// begins no other one. Otherwise clients that send and disconnect could begin changes without
/// limit.
const ABANDONED_MAX: usize = 1024;

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
