//! `?archive=tar`: a folder and everything beneath it that the client may read, as one archive.
//!
//! The archive is made while it is sent, by a task that the client's pace drives through
//! [`Body::channel`]. Memory does not grow with the folder: one piece of a file, and one page of
//! each folder on the way down, which the budget of listings limits.
//!
//! Entries appear as in a listing: without hidden names and the store's own, and symbolic links as
//! their targets. A link to a folder that contains it is left out. So is what the client may not
//! read or list, and what is deleted or cannot be read meanwhile; the log has a line for the
//! latter. Any other error ends the connection, so that the client does not take a part for the
//! whole.

use super::budget::Lease;
use super::http_error::{HttpError, Operation};
use super::list::truncate_to_budget;
use super::path;
use super::permitted::Permitted;
use super::{Inner, is_listed};
use crate::rights::Rights;
use onrush::body::BodySender;
use onrush::{Body, Bytes, Request, Response, WorkerHandle};
use onrush_store::{ByteStream, Entry, Key, Kind, ListHow, Object, StoreError, Version, Wanted};
use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

/// The bytes that may wait for the client, and one piece more.
const QUEUE_BYTES: usize = 64 * 1024;

/// The unit of the format, in bytes.
const BLOCK_BYTES: u64 = 512;

/// How often a file is tried again if descriptors or memory are short, and the time between.
const BUSY_TRIES: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// The name of an archive of the top folder.
const TOP_NAME: &str = "files";

/// A folder that is being archived.
struct Level {
    folder: Option<Key>,
    /// Its path beneath the archived folder. Ends with a slash unless empty.
    below: Vec<u8>,
    /// The version that its entry had, to recognise it when a link leads back to it.
    version: Option<Version>,
    entries: vec::IntoIter<Entry>,
    /// The memory of the entries.
    _lease: Option<Lease>,
    /// The name after which the next page begins.
    next: Option<Vec<u8>>,
}

/// An archive that is being made.
struct Archive {
    inner: Arc<Inner>,
    permitted: Permitted,
    worker: WorkerHandle,
    /// The folder that all paths of the archive begin with.
    name: Vec<u8>,
    /// The folders from the top of the archive to the current one.
    levels: Vec<Level>,
    /// Renders heads into its memory, from which they are taken.
    heads: tar::Builder<Vec<u8>>,
    sender: BodySender,
}

impl Inner {
    /// The response to GET or HEAD of a folder with `?archive=tar`. The right to list the folder
    /// has been checked.
    pub(super) async fn archive(
        self: &Arc<Inner>,
        request: &Request,
        folder: Option<Key>,
    ) -> Result<Response, HttpError> {
        let permitted = Permitted::new(request, &self.options)?;
        let name = folder.as_ref().map_or(TOP_NAME.as_bytes(), Key::name);
        let name = name.to_vec();
        let first = self.level(folder.clone(), Vec::new(), None, None).await;
        let first =
            first.map_err(|error| self.store_failure(error, Operation::Read, folder.as_ref()))?;
        let disposition = disposition(&name);
        let (sender, body) = Body::channel(QUEUE_BYTES);
        let archive = Archive {
            inner: self.clone(),
            permitted,
            worker: request.worker().clone(),
            name,
            levels: vec![first],
            heads: tar::Builder::new(Vec::new()),
            sender,
        };
        request.worker().spawn(archive.run()).detach();
        Ok(Response::with_body(body)
            .content_type("application/x-tar")
            .with_header("Content-Disposition", disposition)
            .with_header("Cache-Control", "no-cache")
            .with_header("X-Content-Type-Options", "nosniff"))
    }

    /// One page of a folder.
    async fn level(
        &self,
        folder: Option<Key>,
        below: Vec<u8>,
        version: Option<Version>,
        after: Option<Vec<u8>>,
    ) -> onrush_store::Result<Level> {
        let how = ListHow {
            after,
            hidden: self.options.hidden,
            ..ListHow::default()
        };
        let mut page = self.store.list(folder.as_ref(), how).await?;
        let lease = truncate_to_budget(&mut page, &self.listing_budget);
        page.entries
            .retain(|entry| is_listed(&self.options, folder.as_ref(), entry));
        Ok(Level {
            folder,
            below,
            version,
            entries: page.entries.into_iter(),
            _lease: lease,
            next: page.next,
        })
    }
}

impl Archive {
    async fn run(mut self) {
        match self.write().await {
            Ok(()) => {} // Dropping the sender ends the body.
            // Without effect if the client has disconnected.
            Err(error) => self.sender.abort(error),
        }
    }

    async fn write(&mut self) -> io::Result<()> {
        self.head(b"", Kind::Directory, 0, None).await?;
        while let Some(level) = self.levels.last_mut() {
            if let Some(entry) = level.entries.next() {
                self.entry(entry).await?;
                continue;
            }
            let done = self.levels.pop();
            if let Some(Level {
                folder,
                below,
                version,
                next: Some(after),
                ..
            }) = done
            {
                self.open_folder(folder, below, version, Some(after))
                    .await?;
            }
        }
        // Two empty blocks end an archive.
        self.send(Bytes::from_static(&[0; 2 * BLOCK_BYTES as usize]))
            .await
    }

    /// Adds an entry of the current folder. A folder becomes the current one.
    async fn entry(&mut self, entry: Entry) -> io::Result<()> {
        let Some(level) = self.levels.last() else {
            return Ok(());
        };
        let mut below = level.below.clone();
        below.extend_from_slice(&entry.name);
        let rights = self.permitted.at(&below);
        let parent = level.folder.as_ref().map(Key::as_bytes);
        let path = match parent {
            Some(parent) => [parent, b"/", &entry.name].concat(),
            None => entry.name,
        };
        let Ok(key) = Key::parse(&path) else {
            return Ok(()); // Too long to be requested by itself.
        };
        match entry.kind {
            Kind::File if rights.contains(Rights::READ) => self.file(&key, &below).await,
            Kind::Directory if rights.contains(Rights::LIST) => {
                let is_loop = |level: &Level| level.version == Some(entry.version);
                if entry.modified_ns != 0 && self.levels.iter().any(is_loop) {
                    return Ok(());
                }
                below.push(b'/');
                let modified_ns = Some(entry.modified_ns);
                self.head(&below, Kind::Directory, 0, modified_ns).await?;
                self.open_folder(Some(key), below, Some(entry.version), None)
                    .await
            }
            _ => Ok(()),
        }
    }

    /// Makes a page of a folder the current one.
    async fn open_folder(
        &mut self,
        folder: Option<Key>,
        below: Vec<u8>,
        version: Option<Version>,
        after: Option<Vec<u8>>,
    ) -> io::Result<()> {
        let level = self.inner.level(folder.clone(), below, version, after);
        match level.await {
            Ok(level) => self.levels.push(level),
            Err(error) => self.pass_over(error, folder.as_ref())?,
        }
        Ok(())
    }

    /// Adds a file.
    async fn file(&mut self, key: &Key, below: &[u8]) -> io::Result<()> {
        let object = match self.open(key).await {
            Ok(object) => object,
            Err(error) => return self.pass_over(error, Some(key)),
        };
        let (size, modified_ns) = (object.meta().size, object.meta().modified_ns);
        self.head(below, Kind::File, size, Some(modified_ns))
            .await?;
        let mut pieces = object.stream(0..size);
        drop(object);
        while let Some(piece) = next(&mut pieces).await {
            let failed = |error| {
                self.inner.storage_log.record(error, Some(key));
                io::Error::other("a file of the archive cannot be read")
            };
            let piece = piece.map_err(failed)?;
            self.send(piece).await?;
        }
        let rest = (size.next_multiple_of(BLOCK_BYTES) - size) as usize;
        self.send(Bytes::from_static(&[0; BLOCK_BYTES as usize]).slice(..rest))
            .await
    }

    /// Opens a file. If descriptors or memory are short, waits and tries again.
    async fn open(&self, key: &Key) -> onrush_store::Result<Object> {
        for _ in 0..BUSY_TRIES {
            match self.inner.store.open(key, Wanted::All).await {
                Err(StoreError::Busy) => {}
                result => return result,
            }
            let idle = self.inner.cache.take_idle_files();
            self.inner.pool.run(move || drop(idle)).await?;
            self.worker.sleep(BUSY_WAIT).await;
        }
        Err(StoreError::Busy)
    }

    /// Leaves out what is gone or cannot be read. Fails with other errors.
    fn pass_over(&self, error: StoreError, key: Option<&Key>) -> io::Result<()> {
        self.inner.storage_log.record(error, key);
        match HttpError::from_store(error, Operation::Read).status {
            403 | 404 | 409 => Ok(()),
            _ => Err(io::Error::other("an entry of the archive cannot be read")),
        }
    }

    /// Sends the head of an entry.
    async fn head(
        &mut self,
        below: &[u8],
        kind: Kind,
        size: u64,
        modified_ns: Option<i64>,
    ) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        let (entry_type, mode) = match kind {
            Kind::File => (tar::EntryType::Regular, 0o644),
            Kind::Directory => (tar::EntryType::Directory, 0o755),
        };
        header.set_entry_type(entry_type);
        header.set_mode(mode);
        header.set_size(size);
        let modified_s = modified_ns.unwrap_or_default() / 1_000_000_000;
        header.set_mtime(u64::try_from(modified_s).unwrap_or_default());
        let path = [&self.name, &b"/"[..], below].concat();
        let path = Path::new(OsStr::from_bytes(&path));
        // Without content: only the head is written, with a long name before it.
        self.heads.append_data(&mut header, path, io::empty())?;
        let head = std::mem::take(self.heads.get_mut());
        self.send(head.into()).await
    }

    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.sender.send(bytes).await
    }
}

async fn next(pieces: &mut ByteStream) -> Option<onrush_store::Result<Bytes>> {
    poll_fn(|cx| pieces.as_mut().poll_next(cx)).await
}

/// `Content-Disposition` with the name of the archive: in ASCII, and exactly (RFC 6266, RFC 8187).
fn disposition(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || " -_.".contains(*c);
    let plain: String = text
        .chars()
        .map(|c| if is_plain(&c) { c } else { '_' })
        .collect();
    let mut exact = String::new();
    path::encode(text.as_bytes(), &mut exact);
    format!("attachment; filename=\"{plain}.tar\"; filename*=UTF-8''{exact}.tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_archive_is_a_field_value() {
        assert_eq!(
            disposition("a \"b\"\r\nü".as_bytes()),
            "attachment; filename=\"a _b____.tar\"; filename*=UTF-8''a%20%22b%22%0D%0A%C3%BC.tar"
        );
    }
}
