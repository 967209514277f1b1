//! Objects and folders over HTTP: the handler [`Files`].
//!
//! Files, lowest first: `negotiate` and `failure` (how refusals look) · `path` (paths and keys) ·
//! `storage_log` · `budget` · `buffers` · `media_type` · `mime` · `stored` (fields of a PUT) ·
//! `digest` · `object` (an object ready to be answered) · `cache` · `ranges` ·
//! `upload` (receiving) · `place` · `json` and `html` (how listings look) · `list` · `read` (GET) ·
//! `write` (PUT, DELETE).
//!
//! Nothing here may block a worker: what might wait for a disk is asked of the store's futures.
//! Nothing here must know the command line, sockets or drivers.

mod budget;
mod buffers;
mod cache;
mod digest;
pub(crate) mod failure;
mod html;
mod json;
mod list;
mod media_type;
mod mime;
mod negotiate;
mod object;
mod path;
mod place;
mod ranges;
mod read;
mod storage_log;
mod stored;
mod upload;
mod write;

use budget::Budget;
use cache::Cache;
use failure::{Failure, While};
use onrush::{Handler, Request, Response};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_store::{Durability, Folder, FolderOptions, Key, StoreError};
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use storage_log::StorageLog;
use upload::Memory;

pub use mime::Types;

/// Bytes of small objects that may be in memory for slow clients only, at most.
const UNDER_WAY_BYTES_MAX: usize = 16 << 20;

/// Which changes clients may make. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// `PUT`: objects are made and replaced, with the folders they are in.
    pub put: bool,
    /// `DELETE`: objects, and folders that are empty.
    pub delete: bool,
}

/// How a folder is served. By default it is read-only and hides names that begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    /// Which changes clients may make.
    pub allow: Allow,
    /// Whether names that begin with a dot are served, listed and written like others.
    pub hidden: bool,
    /// Whether the folder is a web site: a folder with an `index.html` answers that instead of a
    /// listing, and pages run with the rights of the server's origin. Otherwise objects that a
    /// browser would run (HTML, SVG, other XML, scripts) are sent with `Content-Security-Policy:
    /// sandbox`, so that who may upload cannot act in the name of who reads.
    pub site: bool,
    /// Whether bodies of `PUT` are read, counted and thrown away instead of stored; `PUT` is then
    /// allowed, whatever `allow` says. It refuses what a `PUT` that stores would refuse before its
    /// body: names, what is in the way, conditions that do not hold.
    pub sink: bool,
    /// Paths under `/-/` are served by somebody else ([`onrush::Admin`]): nothing may be at or
    /// under the name `-` at the top, however it is written.
    pub admin_beside: bool,
    /// Media types by extension, before those that are built in. For objects whose `PUT` had no
    /// `Content-Type`.
    pub types: Types,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// Segments of a path that a `PUT` may have at most, folders and object; beyond it 400.
    /// It bounds the folders that one `PUT` makes and syncs. What others have made deeper is read,
    /// listed and deleted as usual.
    pub depth_max: usize,
    /// Bytes of small objects kept in memory at most, the cores having an equal share; 0 keeps
    /// none. As much again, up to 16 MiB, may be on its way to clients that take their time; beyond
    /// that objects are sent from their files.
    pub cache_bytes_max: usize,
    /// Larger files kept open at most, for about a tenth of a second each, the cores having an
    /// equal share; 0 keeps none. Each takes a descriptor, and a deleted one its space.
    pub cache_files_max: usize,
    /// Milliseconds for which a cached object is served without another look at the disk: changes
    /// made behind the server's back are seen within that time. A larger file that is kept open is
    /// never served for longer than a tenth of a second without one.
    pub cache_fresh_ms: u64,
    /// Bytes of buffers for uploads, all together: half of them are shared by long ones; of the
    /// other half each of the rest gets its own, and little once it is used up.
    pub upload_bytes_max: usize,
    /// Threads for file work that may block, at most.
    pub blocking_threads: usize,
    /// Counts the files that are kept open, with the connections of the server if that has the
    /// same. Uploads, and downloads of objects that are not in memory, get 503 when it has no room
    /// for them. Without a limit by default. [`Files::new`] is given a store, which has its own
    /// ([`FolderOptions::descriptors`]).
    pub descriptors: Descriptors,
}

impl Default for FilesOptions {
    fn default() -> FilesOptions {
        FilesOptions {
            allow: Allow::default(),
            hidden: false,
            admin_beside: false,
            site: false,
            sink: false,
            types: Types::default(),
            durability: Durability::Full,
            depth_max: 64,
            cache_bytes_max: 64 << 20,
            cache_files_max: 256,
            cache_fresh_ms: 1_000,
            upload_bytes_max: 32 << 20,
            blocking_threads: 16,
            descriptors: Descriptors::default(),
        }
    }
}

/// A folder served over HTTP. Clones serve the same folder.
///
/// Mounted by a route with a parameter `{*key}` it serves what that parameter names; otherwise it
/// takes the whole path. It answers all methods itself, so mount it with
/// [`Router::any`](onrush::Router::any).
///
/// The bound on the length of an upload is the server's, `Limits::body_bytes_max`.
///
/// Symbolic links are followed as long as they stay beneath the folder. `PUT` over one is refused
/// (409), `DELETE` removes the link itself. Pages of listings may end before `?limit=` when slow
/// clients hold many: what is left is always where `next` says.
#[derive(Clone, Debug)]
pub struct Files(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Folder,
    options: FilesOptions,
    /// The value of `Allow`.
    methods: &'static str,
    cache: Cache,
    /// For objects in memory: in the cache, or on their way to clients that take their time.
    memory: Arc<Budget>,
    /// For buffers of uploads.
    uploads: Memory,
    /// For pages of listings.
    listings: Arc<Budget>,
    storage_log: StorageLog,
}

impl Files {
    /// Opens the folder at `dir`. Blocks: for start-up.
    ///
    /// When writing is allowed a missing folder is created, otherwise that is an error. An error
    /// says in one line what is wrong with `dir`.
    pub fn open(dir: &Path, options: FilesOptions) -> io::Result<Files> {
        let writable = options.allow.delete || (options.allow.put && !options.sink);
        let folder = FolderOptions {
            writable,
            durability: options.durability,
            descriptors: options.descriptors.clone(),
            ..FolderOptions::default()
        };
        let pool = BlockingPool::threads(options.blocking_threads, 4096);
        match Folder::open(dir, pool, folder) {
            Ok(store) => {
                if !store.follows_links() {
                    tracing::warn!(
                        dir = %dir.display(),
                        "openat2 is refused by the kernel or a seccomp filter: symbolic links are \
                         not followed, and are answered 404"
                    );
                }
                Ok(Files::new(store, options))
            }
            Err(error) => Err(explain(dir, writable, options.sink, &error)),
        }
    }

    /// Serves a store that is open already. What it does not let be written is refused with 403,
    /// whatever the options say.
    pub fn new(store: Folder, options: FilesOptions) -> Files {
        let methods = match (options.allow.put || options.sink, options.allow.delete) {
            (false, false) => "GET, HEAD, OPTIONS",
            (true, false) => "GET, HEAD, OPTIONS, PUT",
            (false, true) => "DELETE, GET, HEAD, OPTIONS",
            (true, true) => "DELETE, GET, HEAD, OPTIONS, PUT",
        };
        let buffers_per_core = match store.writes_inline() {
            true => 1,
            false => 2, // One is filled while the other is written.
        };
        Files(Arc::new(Inner {
            store,
            methods,
            cache: Cache::new(
                options.cache_bytes_max,
                options.cache_files_max,
                options.cache_fresh_ms,
            ),
            memory: Budget::new(
                options
                    .cache_bytes_max
                    .saturating_add(options.cache_bytes_max.min(UNDER_WAY_BYTES_MAX)),
            ),
            uploads: Memory::new(options.upload_bytes_max, buffers_per_core),
            listings: Budget::new(list::PAGES_BYTES_MAX),
            storage_log: StorageLog::default(),
            options,
        }))
    }

    /// The store behind it.
    pub fn store(&self) -> &Folder {
        &self.0.store
    }
}

/// What is wrong with a folder, for people to read.
fn explain(dir: &Path, writable: bool, sink: bool, error: &io::Error) -> io::Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound if writable => "cannot be created".to_owned(),
        io::ErrorKind::NotFound if sink => {
            "does not exist; a sink keeps nothing, and so creates no folder".to_owned()
        }
        io::ErrorKind::NotFound => {
            "does not exist; it is created only when writing is allowed".to_owned()
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "is not a folder".to_owned(),
        io::ErrorKind::PermissionDenied if writable => {
            "may not be read and written by this user".to_owned()
        }
        io::ErrorKind::PermissionDenied => "may not be read by this user".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "is on a disk that is read-only".to_owned(),
        _ => format!("cannot be opened: {error}"),
    };
    io::Error::new(error.kind(), format!("{} {what}", dir.display()))
}

/// An answer that is there, or is to be waited for.
enum Handling {
    Now(Response),
    Later(Arc<Inner>, Request),
}

impl Handler for Files {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<> + 'static {
        let reply = match self.0.try_respond(&request) {
            Some(response) => Handling::Now(response),
            None => Handling::Later(self.0.clone(), request),
        };
        async move {
            match reply {
                Handling::Now(response) => response,
                // Boxed, so that hot requests need not carry so large a future about.
                Handling::Later(inner, request) => Box::pin(inner.respond(request)).await,
            }
        }
    }
}

impl Inner {
    async fn respond(self: Arc<Inner>, request: Request) -> Response {
        let json = negotiate::prefers_json(&request);
        let allow = self.options.allow;
        let result = match request.method() {
            "GET" | "HEAD" => self.get(&request).await,
            "PUT" if self.options.sink => self.sink(request).await,
            "PUT" if allow.put => self.put(request).await,
            "DELETE" if allow.delete => self.delete(&request).await,
            "OPTIONS" if request.path() == "*" => Ok(self.allowed()),
            "OPTIONS" => path::check(&request).map(|()| self.allowed()),
            _ => path::check(&request).map(|()| {
                Failure::new(405, "the method is not allowed here")
                    .render(json)
                    .with_header("Allow", self.methods)
            }),
        };
        result.unwrap_or_else(|failure| failure.render(json))
    }

    /// The response to `OPTIONS`.
    fn allowed(&self) -> Response {
        Response::new(204)
            .with_header("Allow", self.methods)
            .with_header("Accept-Ranges", "bytes")
    }

    /// The response to an error of the store about `key` (`None`: the top folder), which is logged
    /// if the storage is to blame.
    fn failed(&self, error: StoreError, at: While, key: Option<&Key>) -> Failure {
        self.storage_log.record(error, key);
        Failure::of(error, at)
    }
}
