//! `?archive=`: a folder and everything beneath it that the client may read, as one archive in the
//! format tar, tar.zst or zip.
//!
//! The archive is made while it is sent, by a task that the client's pace drives through
//! [`Body::channel`]. The memory is that of one piece of a file, and of some names and entries of
//! each folder on the way down, which the budget of listings limits. A file that is larger than a
//! piece is open at the pace of the client, and counts for its share of open files. The state of
//! the compression has a budget of its own (`COMPRESSION_BYTES_MAX`), and the directory at the
//! end of a zip another one (`DIRECTORIES_BYTES_MAX`). If one of them is used up, a request gets
//! 503. A zip with more entries than fit ends with an error; a tar has no such limit.
//!
//! Entries appear as in a listing: without hidden names and the store's own, and symbolic links as
//! their targets. A link to a folder that contains it is left out. So is what the client may not
//! read or list, and what is deleted or cannot be read meanwhile; the log has a line for the
//! latter. Any other error ends the connection, so that the client does not take a part for the
//! whole.
//!
//! Submodules: `zip` and `encoder` (heads and ends of entries) · `output` (compression).

mod encoder;
mod output;
mod zip;

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::listing::archive_format::Format;
use crate::files::listing::entries::Entries;
use crate::files::listing::list::Listings;
use crate::files::object::{SMALL_BYTES_MAX, read};
use crate::files::path;
use crate::files::shared::permitted::Permitted;
use crate::rights::Rights;
use crate::shares::{Full, Holder, Share, Shares};
use encoder::Encoder;
use onrush::{Body, Bytes, Request, Response, WorkerHandle};
use onrush_rt::descriptors::FileUse;
use onrush_store::{ByteStream, CursorHow, DetailedEntry, Entry, Key, Kind, Object, StoreError};
use onrush_store::{Version, Wanted};
use output::Output;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The bytes that may wait for the client, and one piece more.
const QUEUE_BYTES: usize = 64 * 1024;

/// How often a file is opened again if descriptors or memory are short, and the time between.
const BUSY_TRIES: u32 = 100;
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// The unit in which the budget of directories is taken.
const LEASE_BYTES: usize = 64 << 10;

fn too_many(full: Full) -> HttpError {
    HttpError::full(
        full,
        "too many archives are being made for you; try again later, or with ?archive=tar",
        "too many archives are being made; try again later, or with ?archive=tar",
    )
}

/// The name of an archive of the top folder.
const TOP_NAME: &str = "files";

/// What an archive says about an entry before its content.
struct Head {
    /// Its path in the archive. That of a folder ends with a slash.
    path: Vec<u8>,
    kind: Kind,
    size: u64,
    /// The time of the last change, in seconds since 1970.
    modified_s: u64,
}

/// A folder that is being archived.
struct Level {
    /// Its path beneath the archived folder. Ends with a slash unless empty.
    below: Vec<u8>,
    /// The version that its entry had, to recognise it when a link leads back to it.
    version: Option<Version>,
    entries: Entries,
}

/// An archive that is being made.
struct Archive {
    listings: Arc<Listings>,
    permitted: Permitted,
    worker: WorkerHandle,
    /// Whose memory it needs.
    holder: Holder,
    /// The folder that all paths of the archive begin with.
    name: Vec<u8>,
    /// The folders from the top of the archive to the current one.
    levels: Vec<Level>,
    encoder: Encoder,
    output: Output,
    /// The memory of the directory of a zip.
    leases: Vec<Share>,
}

impl Listings {
    /// The response to GET or HEAD of a folder with `?archive=`. The right to list the folder has
    /// been checked.
    pub(in crate::files) async fn archive(
        self: &Arc<Listings>,
        request: &Request,
        folder: Option<Key>,
        format: Format,
    ) -> Result<Response, HttpError> {
        let permitted = Permitted::new(request, &self.objects.options)?;
        let name = folder.as_ref().map_or(TOP_NAME.as_bytes(), Key::name);
        let name = name.to_vec();
        let holder = Holder::of(request);
        let mut entries = Entries::new(&self.objects, holder, folder.clone(), CursorHow::default());
        let is_head = request.method() == "HEAD";
        let begun = match is_head {
            true => self.objects.store.check_folder(folder.as_ref()).await,
            false => entries.begin(&self.objects).await,
        };
        begun.map_err(|error| {
            self.objects
                .store_failure(error, Operation::Read, folder.as_ref())
        })?;
        let modified_ns = match &folder {
            Some(key) => self
                .objects
                .store
                .meta(key)
                .await
                .map_or(0, |meta| meta.modified_ns),
            None => 0,
        };
        let disposition = disposition(&name, format.extension());
        let (sender, body) = Body::channel(QUEUE_BYTES);
        let worker = request.worker().clone();
        let shares = (&self.objects.shares.compression, holder);
        let output = Output::new(format, sender, shares)?;
        let archive = Archive {
            listings: self.clone(),
            permitted,
            worker,
            holder,
            name,
            levels: vec![Level {
                below: Vec::new(),
                version: None,
                entries,
            }],
            encoder: Encoder::new(format),
            output,
            leases: first_lease(format, &self.objects.shares.directories, holder)?,
        };
        if !is_head {
            request.worker().spawn(archive.run(modified_ns)).detach();
        }
        Ok(Response::with_body(body)
            .content_type(format.media_type())
            .with_header("Content-Disposition", disposition)
            .with_header("Cache-Control", "no-cache")
            .with_header("X-Content-Type-Options", "nosniff"))
    }
}

impl Archive {
    async fn run(mut self, modified_ns: i64) {
        let written = match self.write(modified_ns).await {
            Ok(()) => self.end().await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => self.output.end(),
            Err(error) => self.output.abort(error), // Without effect if the client has gone.
        }
    }

    async fn end(&mut self) -> io::Result<()> {
        for piece in std::mem::take(&mut self.encoder).finish() {
            self.output.send(piece).await?;
        }
        self.output.flush().await
    }

    async fn write(&mut self, modified_ns: i64) -> io::Result<()> {
        self.head(b"", Kind::Directory, 0, modified_ns).await?;
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next(&self.listings.objects).await {
                Ok(Some(DetailedEntry { entry, .. })) => self.entry(entry).await?,
                Ok(None) => drop(self.levels.pop()),
                Err(error) => {
                    let level = self.levels.pop();
                    let folder = level.as_ref().and_then(|level| level.entries.folder());
                    self.pass_over(error, folder)?;
                }
            }
        }
        Ok(())
    }

    /// Adds an entry of the current folder. A folder becomes the current one.
    async fn entry(&mut self, entry: Entry) -> io::Result<()> {
        let Some(level) = self.levels.last() else {
            return Ok(());
        };
        let mut below = level.below.clone();
        below.extend_from_slice(&entry.name);
        let rights = self.permitted.at(&below);
        let Ok(key) = Key::of_entry(level.entries.folder(), &entry.name) else {
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
                self.head(&below, Kind::Directory, 0, entry.modified_ns)
                    .await?;
                let how = CursorHow::default();
                self.levels.push(Level {
                    below,
                    version: Some(entry.version),
                    entries: Entries::new(&self.listings.objects, self.holder, Some(key), how),
                });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Adds a file.
    async fn file(&mut self, key: &Key, below: &[u8]) -> io::Result<()> {
        let object = match self.open(key).await {
            Ok(object) => object,
            Err(error) => return self.pass_over(error, Some(key)),
        };
        let (size, modified_ns) = (object.meta().size, object.meta().modified_ns);
        let listings = self.listings.clone();
        let failed = |error| {
            listings.objects.storage_log.record(error, Some(key));
            io::Error::other("a file of the archive cannot be read")
        };
        if size <= SMALL_BYTES_MAX {
            let content = read(&object, size as usize).await.map_err(failed)?;
            drop(object); // Closed before the client is waited for.
            if (content.len() as u64) < size {
                return Err(failed(StoreError::Io(io::ErrorKind::UnexpectedEof.into())));
            }
            self.head(below, Kind::File, size, modified_ns).await?;
            self.content(content.into()).await?;
        } else {
            let mut pieces = object.stream(0..size);
            drop(object);
            self.head(below, Kind::File, size, modified_ns).await?;
            while let Some(piece) = next(&mut pieces).await {
                self.content(piece.map_err(failed)?).await?;
            }
        }
        let end = self.encoder.end(size);
        self.output.send(end).await
    }

    async fn content(&mut self, piece: Bytes) -> io::Result<()> {
        let piece = self.encoder.content(piece);
        self.output.send(piece).await
    }

    /// Opens a file. If descriptors or memory are short, or the client has its share, waits and
    /// tries again.
    async fn open(&self, key: &Key) -> onrush_store::Result<Object> {
        for _ in 0..BUSY_TRIES {
            match self.try_open(key).await {
                Err(StoreError::Busy) => {}
                result => return result,
            }
            let idle = self.listings.cache.take_idle_files();
            self.listings.pool.run(move || drop(idle)).await?;
            self.worker.sleep(BUSY_WAIT).await;
        }
        Err(StoreError::Busy)
    }

    /// Opens a file. It stays open at the pace of the client, unless it is read at once.
    async fn try_open(&self, key: &Key) -> onrush_store::Result<Object> {
        let mut object = self.listings.objects.store.open(key, Wanted::All).await?;
        if object.meta().size > SMALL_BYTES_MAX
            && let Some(file) = object.file_mut()
        {
            if !file.may_stay_open(FileUse::Download) {
                return Err(StoreError::Busy);
            }
            (self.listings.objects.shares.files).hold_download(file, || self.holder)?;
        }
        Ok(object)
    }

    /// Leaves out what is gone or cannot be read. Fails with other errors.
    fn pass_over(&self, error: StoreError, key: Option<&Key>) -> io::Result<()> {
        self.listings.objects.storage_log.record(error, key);
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
        modified_ns: i64,
    ) -> io::Result<()> {
        let modified_s = match (kind, modified_ns) {
            // A bucket does not know it.
            (Kind::Directory, 0) => self.worker.unix_seconds(),
            (_, ns) => u64::try_from(ns / 1_000_000_000).unwrap_or_default(),
        };
        let head = Head {
            path: [&self.name, &b"/"[..], below].concat(),
            kind,
            size,
            modified_s,
        };
        let bytes = self.encoder.begin(&head)?;
        while self.leases.len() * LEASE_BYTES < self.encoder.kept_bytes() {
            let lease = (self.listings.objects.shares.directories).take(self.holder, LEASE_BYTES);
            self.leases.push(lease.map_err(|_| {
                tracing::warn!("a zip archive has too many entries and was ended");
                io::Error::other("the archive has too many entries")
            })?);
        }
        self.output.send(bytes).await
    }
}

/// The memory with which the directory of a zip begins. It is taken before the head of the response
/// is sent: most zips need no more.
fn first_lease(
    format: Format,
    shares: &Arc<Shares>,
    holder: Holder,
) -> Result<Vec<Share>, HttpError> {
    match format {
        Format::Zip => Ok(vec![shares.take(holder, LEASE_BYTES).map_err(too_many)?]),
        Format::Tar | Format::TarZst => Ok(Vec::new()),
    }
}

async fn next(pieces: &mut ByteStream) -> Option<onrush_store::Result<Bytes>> {
    poll_fn(|cx| pieces.as_mut().poll_next(cx)).await
}

/// `Content-Disposition` with the name of the archive: in ASCII, and exactly (RFC 6266, RFC 8187).
fn disposition(name: &[u8], extension: &str) -> String {
    let text = String::from_utf8_lossy(name);
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || " -_.".contains(*c);
    let plain: String = text
        .chars()
        .map(|c| if is_plain(&c) { c } else { '_' })
        .collect();
    let mut exact = String::new();
    path::encode(text.as_bytes(), &mut exact);
    format!("attachment; filename=\"{plain}.{extension}\"; filename*=UTF-8''{exact}.{extension}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zip_without_memory_is_refused_at_once() {
        let shares = Shares::new("directories", 2 * LEASE_BYTES);
        let [first, other] = ["a", "b"].map(Holder::user);
        let taken = first_lease(Format::Zip, &shares, first);
        assert!(taken.is_ok_and(|leases| leases.len() == 1), "and returned");
        let _others = shares.take(other, LEASE_BYTES);
        let refused = first_lease(Format::Zip, &shares, other);
        assert_eq!(refused.err(), Some(too_many(Full::Own)));
        let refused = first_lease(Format::Zip, &shares, first);
        assert_eq!(refused.err(), Some(too_many(Full::Own)));
        assert!(first_lease(Format::TarZst, &shares, first).is_ok());
    }

    #[test]
    fn the_name_of_an_archive_is_a_field_value() {
        assert_eq!(
            disposition("a \"b\"\r\nü".as_bytes(), "tar"),
            "attachment; filename=\"a _b____.tar\"; filename*=UTF-8''a%20%22b%22%0D%0A%C3%BC.tar"
        );
    }
}
