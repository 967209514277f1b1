//! The parts of a multipart upload, and the bytes that do not fill the next one yet. A full part is
//! sent when more bytes arrive, while the next one fills.

use crate::multipart::Parts;
use crate::part_memory::{PartPermit, SHORT_BYTES};
use crate::service::Service;
use onrush_store::{Result, StoreError};
use tokio::time::Instant;

/// The size of the first parts. Uploads of unknown length that are not longer are one request.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// After this many parts their size doubles, because S3 permits only [`PARTS_MAX`].
const PARTS_OF_A_SIZE: usize = 1000;
/// The size that is not exceeded: a part is in memory, and what an upload keeps has up to a part.
const PART_BYTES_MAX: usize = 128 * 1024 * 1024;
/// The most parts of an upload (a limit of S3).
const PARTS_MAX: usize = 10_000;
/// The bytes of so many parts: 867 GiB.
const UPLOAD_BYTES_MAX: u64 = {
    let (mut parts, mut bytes) = (0, 0);
    while parts < PARTS_MAX {
        bytes += part_bytes(parts) as u64;
        parts += 1;
    }
    bytes
};

/// The size of a part after so many others.
const fn part_bytes(parts: usize) -> usize {
    let doubled = parts / PARTS_OF_A_SIZE;
    if doubled >= (PART_BYTES_MAX / PART_BYTES).ilog2() as usize {
        return PART_BYTES_MAX;
    }
    PART_BYTES << doubled
}

/// Fails with [`StoreError::TooLarge`] if parts cannot have so many bytes together.
pub(crate) fn check_size(bytes: u64) -> Result<()> {
    match bytes > UPLOAD_BYTES_MAX {
        true => Err(StoreError::TooLarge),
        false => Ok(()),
    }
}

/// The size of the part that contains the byte at `offset`.
pub(crate) fn part_bytes_at(offset: u64) -> usize {
    let (mut parts, mut end) = (0, 0);
    loop {
        let bytes = part_bytes(parts);
        end += bytes as u64;
        if offset < end {
            return bytes;
        }
        parts += 1;
    }
}

#[derive(Default)]
pub(crate) struct PartBuffer {
    /// What has not been sent.
    pub(crate) held: Vec<u8>,
    /// To hold more than a short object.
    permit: Option<PartPermit>,
    /// The multipart upload, since the first part was full.
    pub(crate) parts: Option<Parts>,
}

impl PartBuffer {
    /// Whether what is held fills a part.
    pub(crate) fn is_full(&self) -> bool {
        self.held.len() >= self.part_bytes()
    }

    /// The size of the next part.
    fn part_bytes(&self) -> usize {
        part_bytes(self.parts.as_ref().map_or(0, Parts::count))
    }

    /// Adds bytes of an upload of which `written` bytes have arrived with these. Sends each part
    /// that is full; `begin` begins the multipart upload, for which it has the time until its
    /// argument. Fails with [`StoreError::TooLarge`] if there are more bytes than parts can have.
    pub(crate) async fn append(
        &mut self,
        service: &Service,
        written: u64,
        mut bytes: &[u8],
        begin: impl AsyncFn(Instant) -> Result<Parts>,
    ) -> Result<()> {
        check_size(written)?;
        while !bytes.is_empty() {
            // An earlier build may have kept more than a part has now.
            let room = self.part_bytes().saturating_sub(self.held.len());
            if room == 0 {
                self.send_part(service.limit(), &begin).await?;
                continue;
            }
            let (now, later) = bytes.split_at(bytes.len().min(room));
            let (held, whole) = (self.held.len() + now.len(), self.part_bytes());
            self.reserve(service, written, held, whole).await?;
            self.held.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Begins to send what is held as the next part.
    pub(crate) async fn send_part(
        &mut self,
        until: Instant,
        begin: impl AsyncFn(Instant) -> Result<Parts>,
    ) -> Result<()> {
        let (part, permit) = self.take();
        let parts = match &mut self.parts {
            Some(parts) => parts,
            parts => parts.insert(begin(until).await?),
        };
        parts.send(part, permit, until).await
    }

    /// Takes what is held, and the permission to hold it.
    pub(crate) fn take(&mut self) -> (Vec<u8>, Option<PartPermit>) {
        (std::mem::take(&mut self.held), self.permit.take())
    }

    /// Waits until an upload of `written` bytes so far may hold `held` bytes of a part that will
    /// have `whole` bytes. Those of a short upload are not counted. Fails with
    /// [`StoreError::Throttled`] if there is no room for too long.
    pub(crate) async fn reserve(
        &mut self,
        service: &Service,
        written: u64,
        held: usize,
        whole: usize,
    ) -> Result<()> {
        if written <= SHORT_BYTES {
            return Ok(());
        }
        let begin = || service.part_memory.begin(whole.max(held) as u64);
        let mut permit = self.permit.take().unwrap_or_else(begin);
        if !permit.try_grow(held as u64) {
            let grow = permit.grow(held as u64);
            let room = async move { Ok(grow.await) };
            permit = match service.spawn_until(service.limit(), room).await {
                Err(StoreError::Timeout) => Err(StoreError::Throttled { retry_after: None }),
                permit => permit,
            }?;
        }
        self.permit = Some(permit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Options;

    #[test]
    fn ten_thousand_parts_fit_into_the_memory() {
        let memory = Options::default().part_memory_bytes;
        let mut end = 0;
        for parts in 0..PARTS_MAX {
            let bytes = part_bytes(parts);
            assert!(bytes as u64 <= memory, "part {parts}");
            assert!(parts == 0 || bytes >= part_bytes(parts - 1));
            end += bytes as u64;
        }
        assert_eq!((end >> 20, end % (1 << 20)), (888_000, 0));
        assert_eq!(part_bytes_at(end - 1), PART_BYTES_MAX);
        assert_eq!(check_size(end), Ok(()));
        assert_eq!(check_size(end + 1), Err(StoreError::TooLarge));
    }

    /// Uploads go on with another version: the places of their parts are as they were.
    #[test]
    fn parts_begin_where_they_did() {
        for (offset, mib) in [(0, 8), (7999, 8), (8000, 16), (24_000, 32), (120_000, 128)] {
            assert_eq!(part_bytes_at(offset << 20), mib << 20, "{offset}");
        }
    }
}
