//! Shares of clients of the files that are open at their pace, while descriptors are short.

use crate::files::http::http_error::HttpError;
use crate::shares::{Full, Holder, Share, Shares};
use onrush_rt::descriptors::Descriptors;
use onrush_rt::fs::File;
use onrush_store::StoreError;
use std::sync::Arc;

/// The budget. Files for downloads and for uploads count alike.
#[derive(Debug)]
pub(in crate::files) struct OpenFiles {
    shares: Arc<Shares>,
    descriptors: Descriptors,
}

impl OpenFiles {
    pub(in crate::files) fn new(descriptors: &Descriptors) -> Arc<OpenFiles> {
        Arc::new(OpenFiles {
            shares: Shares::new("files", 0),
            descriptors: descriptors.clone(),
        })
    }

    /// Whether there are not enough for all. Until then, clients need no share.
    pub(in crate::files) fn are_contested(&self) -> bool {
        self.descriptors.are_files_contested()
    }

    /// The shares of a total that is right now.
    pub(in crate::files) fn shares(&self) -> &Arc<Shares> {
        let total = usize::try_from(self.descriptors.shared_files());
        self.shares.set_total(total.unwrap_or(usize::MAX));
        &self.shares
    }

    /// The descriptors limit the files of all clients together.
    fn take(&self, holder: impl FnOnce() -> Holder) -> Result<Option<Share>, Full> {
        match self.are_contested() {
            true => self.shares().take_own(holder()).map(Some),
            false => Ok(None),
        }
    }

    /// Takes the place of a file of a download, until it is closed. [`StoreError::Busy`]: the
    /// client has its share.
    pub(in crate::files) fn hold_download(
        &self,
        file: &mut File,
        holder: impl FnOnce() -> Holder,
    ) -> Result<(), StoreError> {
        if let Some(share) = self.take(holder).map_err(|_| StoreError::Busy)? {
            file.add_guard(Arc::new(share));
        }
        Ok(())
    }

    /// The place of the file of an upload, to be held until the file is closed. `status`: that of
    /// the response if the client has its share.
    pub(in crate::files) fn hold_upload(
        &self,
        status: u16,
        holder: impl FnOnce() -> Holder,
    ) -> Result<Option<Share>, HttpError> {
        let refused = HttpError::new(status, "this client has too many uploads in progress");
        self.take(holder).map_err(|_| refused)
    }
}
