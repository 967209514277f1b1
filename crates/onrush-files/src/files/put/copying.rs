//! Copies of objects.

use crate::files::put::writes::Writes;
use futures_core::Stream;
use onrush_store::{Committed, Relocation, StoreError, Wanted};
use std::future::poll_fn;
use std::pin::Pin;

impl Writes {
    /// Copies an object, by the store or through this server.
    pub(in crate::files) async fn copy(&self, how: Relocation) -> Result<Committed, StoreError> {
        match self.objects.store.copy(how.clone()).await {
            Err(StoreError::Unsupported) => self.copy_bytes(how).await,
            copied => copied,
        }
    }

    /// Copies through this server.
    async fn copy_bytes(&self, how: Relocation) -> Result<Committed, StoreError> {
        let source = self.objects.store.open(&how.from, Wanted::All).await?;
        how.from_condition.check(Some(source.meta()))?;
        let size = source.meta().size;
        let staged = (self.objects.store).stage(&how.to, how.to_condition, Some(size));
        let mut upload = staged.await?;
        upload.set_metadata(source.metadata().await?)?;
        let mut bytes = source.stream(0..size);
        while let Some(piece) = poll_fn(|cx| Pin::new(&mut bytes).poll_next(cx)).await {
            upload.write(piece?.to_vec()).await?;
        }
        match upload.written_bytes() == size {
            true => upload.commit().await,
            false => Err(StoreError::Changed),
        }
    }
}
