//! Objects and folders over HTTP: the handler [`Files`].
//!
//! Submodules, lowest first: `http` (what HTTP defines) · `path` (paths and keys) · `shared` (what
//! requests share) · `object` (an object that is ready to be served) · `receive` (bodies that
//! become objects) · `uploads` (those that continue later) · `listing` · `archive` · `get` · `put`
//! · `resume` (protocols of uploads that continue) · `webdav` · `upkeep`.
//!
//! Nothing here blocks a worker: operations that may wait for a disk use the futures of the store.
//! The modules do not depend on the command line, sockets or drivers.

mod archive;
mod get;
pub(crate) mod http;
mod listing;
mod object;
pub(crate) mod path;
mod put;
mod receive;
mod resume;
pub(crate) mod shared;
mod upkeep;
pub(crate) mod uploads;
mod webdav;

use crate::shares::Holder;
use get::read::GetRequest;
use get::siblings::Siblings;
use http::http_error::{HttpError, Operation};
use http::open_error::open_error;
use object::cache::Cache;
use onrush::metrics::Collector;
use onrush::{Handler, Request, Response};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_store::cache::is_cache;
use onrush_store::{
    Durability, Folder, FolderOptions, Key, PreparedOptions, ShownNames, Store, StoreError,
};
use path::ResolvedPath;
use path::shown::is_listed;
use put::methods::methods;
use put::terraform::StateLocks;
use receive::upload::UploadBuffers;
use shared::budget::Budget;
use shared::client_rights::{
    check_right, check_right_at, check_right_beneath, may_read, may_read_index,
};
use shared::run_to_end::{Abandoned, run_to_end};
use shared::storage_log::StorageLog;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use upkeep::client_shares::{ClientShares, SharesCollector};
use uploads::{UploadId, Uploads};
use webdav::Locks;

pub use http::types::Types;
pub(crate) use listing::html::policy as page_policy;
pub(crate) use listing::list::nonce;
pub use path::assets::PATHS as PAGE_PATHS;
pub use receive::upload_limits::UploadLimits;
pub(crate) use resume::tus::override_method;
pub use upkeep::Upkeep;
pub use uploads::{UPLOAD_RECORDS, recorded_uploads};
#[cfg(feature = "testing")]
pub use webdav::received;

/// The maximum memory of small objects that are not in the cache but are being sent to slow
/// clients.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

const NAMES_FOLD: HttpError = HttpError::new(
    501,
    "this file system does not distinguish upper and lower case, so a lock of one spelling of a \
     path protects nothing",
);
const NO_FORM: HttpError = HttpError::new(
    415,
    "POST takes a form with files (multipart/form-data), or the fields of tus; \
     use PUT for one file",
);
/// Of a client that has its share. Others are not refused for it.
const TOO_MANY_ABANDONED: HttpError = HttpError::new(
    429,
    "too many changes from which you have disconnected are in progress; try again later",
);

/// The changes that clients may make. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// `PUT` creates and replaces objects, and creates their folders.
    pub put: bool,
    /// `DELETE` deletes objects and empty folders.
    pub delete: bool,
    /// `DELETE` deletes folders with everything in them, and COPY and MOVE replace them. Without
    /// effect unless `delete` is set.
    pub delete_folders: bool,
}

/// The options of [`Files`]. By default the folder is read-only and names that begin with a dot are
/// hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    /// Which changes clients may make.
    pub allow: Allow,
    /// Serves, lists and writes names that begin with a dot like other names.
    pub hidden: bool,
    /// Those of them that are served without [`FilesOptions::hidden`].
    pub show: ShownNames,
    /// Serves the folder as a web site. A folder with an `index.html` serves that object instead of
    /// a listing, and pages run with the rights of the server's origin. Otherwise, objects with
    /// scripts that a browser would run (HTML, SVG, other XML, scripts) are sent with
    /// `Content-Security-Policy: sandbox`. So a client with the right to upload cannot act with the
    /// rights of readers.
    pub site: bool,
    /// Serves WebDAV (RFC 4918, classes 1 and 2): `PROPFIND`, `PROPPATCH`, `MKCOL`, `LOCK` and
    /// `UNLOCK`, and locks and the field `If` for all changes. Locks are in memory.
    pub webdav: bool,
    /// The number of entries of a folder and those beneath it up to which `PROPFIND` may have
    /// `Depth: infinity`; for more it gets 403. 0: for all.
    pub propfind_entries_max: usize,
    /// Serves a site of one page: a client that navigates to a path without an object gets the
    /// `index.html` of the top folder. Needs `site`.
    pub spa: bool,
    /// Serves `name.zst`, `name.br` or `name.gz` as the content of `name` to clients that accept
    /// the coding. To write such an object, a client needs the right to replace `name`.
    pub precompressed: bool,
    /// Compresses text while it is sent, for clients that accept it.
    pub compress: bool,
    /// Reads, counts and discards the bodies of `PUT` instead of storing them. `PUT` is then
    /// allowed regardless of `allow`. Invalid names, conflicts and failed preconditions are refused
    /// as in a `PUT` that stores.
    pub sink: bool,
    /// Serves objects whose names end with `.tfstate` as states of Terraform and OpenTofu, with
    /// `LOCK`, `UNLOCK`, and updates that need the `ID` of the lock. Needs [`Allow::put`].
    pub terraform_state: bool,
    /// Serves a build cache. A `PUT` to a folder named `cas` is accepted only if the name is the
    /// SHA-256 of the content, in hexadecimal digits in lower case; otherwise it gets 400. Folders
    /// `v1/cache` and `v8/artifacts` are served as nx and Turborepo expect.
    pub content_addressed: bool,
    /// Reserves the paths under `/-/` for [`onrush::Admin`]: no object is served or written at or
    /// under the name `-` in the top folder, in any spelling.
    pub reserve_admin_paths: bool,
    /// Media types by extension, which take precedence over the built-in ones. They apply to
    /// objects whose `PUT` had no `Content-Type`.
    pub types: Types,
    /// The failures that an acknowledged change survives.
    pub durability: Durability,
    /// The free space of the file system below which no object is written, in bytes. [`Files::new`]
    /// ignores it, because a store has its own ([`FolderOptions::min_free_bytes`]).
    pub min_free_bytes: u64,
    /// Whether new objects get a checksum ([`FolderOptions::checksums`]).
    pub checksums: bool,
    /// The maximum number of path segments of a `PUT`, folders and object; more get 400. It limits
    /// the folders that one `PUT` creates and syncs. Deeper objects that other programs created
    /// can be read, listed and deleted.
    pub depth_max: usize,
    /// The maximum size of small objects in memory, in bytes, divided equally among the cores; 0
    /// keeps none. The same amount again, up to 16 MiB, may be in use by responses to slow clients.
    /// Beyond it, objects are sent from their files.
    pub cache_bytes_max: usize,
    /// The maximum number of larger files that are kept open, for about a tenth of a second each,
    /// divided equally among the cores; 0 keeps none. Each uses a descriptor. If the file is
    /// deleted, its space is freed only when it is closed.
    pub cache_files_max: usize,
    /// The time that a cached object is served without access to the disk, in milliseconds. Changes
    /// by other programs become visible within that time. For an open file it is at most a tenth of
    /// a second.
    pub cache_max_age_ms: u64,
    /// The maximum size of all upload buffers, in bytes. Long uploads share one half. Every
    /// other upload gets buffers of its own from the other half, or one small buffer if that half
    /// is used up.
    pub upload_bytes_max: usize,
    /// The limits of uploads that can be continued, and of objects.
    pub upload_limits: UploadLimits,
    /// The maximum number of clients that watch folders at a time; more get 503.
    pub watchers_max: usize,
    /// The maximum number of threads for file operations that may block.
    pub blocking_threads: usize,
    /// The budget of open files. If the server uses the same budget, it includes the connections.
    /// Uploads, and downloads of objects that are not in memory, get 503 if it is used up. The
    /// default has no limit. [`Files::new`] ignores it, because a store has its own
    /// ([`FolderOptions::descriptors`]).
    pub descriptors: Descriptors,
}

impl Default for FilesOptions {
    fn default() -> FilesOptions {
        FilesOptions {
            allow: Allow::default(),
            hidden: false,
            show: ShownNames::default(),
            reserve_admin_paths: false,
            site: false,
            webdav: false,
            propfind_entries_max: 0,
            spa: false,
            precompressed: false,
            compress: false,
            sink: false,
            terraform_state: false,
            content_addressed: false,
            types: Types::default(),
            durability: Durability::Full,
            min_free_bytes: 0,
            checksums: true,
            depth_max: 64,
            cache_bytes_max: 64 << 20,
            cache_files_max: 256,
            cache_max_age_ms: 1_000,
            upload_bytes_max: 32 << 20,
            upload_limits: UploadLimits::default(),
            watchers_max: 1024,
            blocking_threads: 16,
            descriptors: Descriptors::default(),
        }
    }
}

impl FilesOptions {
    /// Whether the response to a GET depends on the codings that the client accepts.
    #[inline]
    fn varies_by_coding(&self) -> bool {
        self.precompressed || self.compress
    }
}

/// A handler that serves a folder over HTTP. Clones serve the same folder.
///
/// If the route has a parameter `{*key}`, the parameter is the path within the folder. Without
/// such a parameter, the whole request path is used. The handler responds to all methods itself, so
/// mount it with [`Router::any`](onrush::Router::any).
///
/// [`Guard::body_bytes_max`](crate::Guard::body_bytes_max) limits the length of an upload, as does
/// `Limits::body_bytes_max` of the server.
///
/// Symbolic links are followed if their target is beneath the folder. `PUT` to a link is refused
/// (409); `DELETE` removes the link itself. A page of a listing may have fewer entries than
/// `?limit=` if slow clients hold many pages; `next` always points to the remaining entries.
#[derive(Clone)]
pub struct Files(Arc<Inner>);

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("store", &self.0.store)
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

struct Inner {
    store: Arc<dyn Store>,
    /// Closes the local files that the store has handed out.
    pool: BlockingPool,
    options: FilesOptions,
    /// The methods of objects and folders that are served.
    methods: Vec<&'static str>,
    /// Those of states of Terraform.
    state_methods: Vec<&'static str>,
    /// The locks of WebDAV.
    locks: Arc<Locks>,
    state_locks: Arc<StateLocks>,
    cache: Cache,
    siblings: Siblings,
    /// The budget of encoders.
    encoder_budget: Arc<Budget>,
    /// Places for the first pieces of compressed objects in the offload pool.
    first_jobs: Arc<Budget>,
    /// The budget of objects in memory: in the cache, or in responses to slow clients.
    object_budget: Arc<Budget>,
    /// The shared buffers of uploads, and the budget of their other buffers.
    upload_buffers: Arc<UploadBuffers>,
    uploads: Arc<Uploads>,
    /// The budgets of which each client has a share.
    shares: Arc<ClientShares>,
    /// Increases when clients that watch have to connect again.
    watch_epoch: Arc<AtomicU64>,
    storage_log: Arc<StorageLog>,
}

impl Files {
    /// Opens the folder at `dir`. This blocks: call it at start-up.
    ///
    /// If writing is allowed, a missing folder is created; otherwise it is an error. An error is
    /// one line that states what is wrong with `dir`.
    pub fn open(dir: &Path, options: FilesOptions) -> io::Result<Files> {
        Ok(Files::new(Files::open_folder(dir, &options)?, options))
    }

    /// Opens the folder that [`Files::open`] serves, for another use as a store.
    pub fn open_folder(dir: &Path, options: &FilesOptions) -> io::Result<Folder> {
        let pool = BlockingPool::threads(options.blocking_threads, 4096);
        let folder = folder_options(options);
        let writable = folder.writable;
        let is_cache = is_cache(dir); // Before it becomes an ordinary folder.
        match Folder::open(dir, pool, folder) {
            Ok(store) => {
                if !store.follows_links() {
                    tracing::warn!(
                        dir = %dir.display(),
                        "the kernel or a seccomp filter refuses openat2: symbolic links are not \
                         followed and return 404"
                    );
                }
                if is_cache {
                    tracing::warn!(
                        dir = %dir.display(),
                        "this is the folder of a cache; without --cache or --edge, its files are \
                         served as they are"
                    );
                }
                Ok(store)
            }
            Err(error) => Err(open_error(dir, writable, options.sink, &error)),
        }
    }

    /// Prepares other options of the folder at `dir` while it is served; see
    /// [`Folder::prepare_options`]. Blocks. An error is one line.
    pub fn prepare_folder_options(
        folder: &Folder,
        dir: &Path,
        options: &FilesOptions,
    ) -> io::Result<PreparedOptions> {
        let prepared = folder.prepare_options(&folder_options(options));
        prepared.map_err(|error| open_error(dir, true, options.sink, &error))
    }

    /// Serves a folder that is already open. Writes that the store does not permit get 403,
    /// regardless of the options.
    pub fn new(store: Folder, options: FilesOptions) -> Files {
        let pool = store.pool().clone();
        Files::on_store(Arc::new(store), pool, options)
    }

    /// As [`Files::new`], for any store. If the store hands out local files, `pool` closes them:
    /// that may wait for a disk.
    pub fn on_store(store: Arc<dyn Store>, pool: BlockingPool, options: FilesOptions) -> Files {
        let buffers_per_core = match store.features().inline_writes {
            true => 1,
            false => 2, // One is filled while the other one is written.
        };
        let digests_max = object::wanted_digest::at_once(&pool);
        let shares = ClientShares::new(options.watchers_max, digests_max, &options.descriptors);
        let locks = Arc::new(Locks::new(&shares.locks));
        locks.set_covers_siblings(options.precompressed);
        Files(Arc::new(Inner {
            uploads: Uploads::new(store.clone(), options.upload_limits, shares.files.clone()),
            store,
            shares,
            pool,
            methods: methods(options.allow, &options, false),
            state_methods: methods(options.allow, &options, true),
            locks,
            state_locks: Arc::default(),
            cache: cache(&options),
            siblings: Siblings::new(options.cache_max_age_ms),
            encoder_budget: get::compress::budget(),
            first_jobs: Budget::new(get::compress::FIRST_JOBS_MAX),
            object_budget: object_budget(&options),
            upload_buffers: Arc::new(UploadBuffers::new(
                options.upload_bytes_max,
                buffers_per_core,
            )),
            watch_epoch: Arc::default(),
            storage_log: Arc::default(),
            options,
        }))
    }

    /// The same objects with other options, for a server whose configuration changes. What requests
    /// share stays the same: locks, unfinished uploads, and buffers. The cache begins empty: cached
    /// objects depend on the options. Those that concern the store itself are ignored
    /// ([`FilesOptions::durability`], [`FilesOptions::min_free_bytes`], [`FilesOptions::checksums`]
    /// and [`FilesOptions::descriptors`]), and so are [`FilesOptions::upload_bytes_max`] and
    /// [`FilesOptions::blocking_threads`].
    ///
    /// Call [`Files::retire`] of this value when no further request is for it.
    #[must_use]
    pub fn with_options(&self, options: FilesOptions) -> Files {
        let inner = &*self.0;
        inner.uploads.set_limits(options.upload_limits);
        inner.shares.watchers.set_total(options.watchers_max);
        inner.locks.set_covers_siblings(options.precompressed);
        Files(Arc::new(Inner {
            store: inner.store.clone(),
            pool: inner.pool.clone(),
            methods: methods(options.allow, &options, false),
            state_methods: methods(options.allow, &options, true),
            locks: inner.locks.clone(),
            state_locks: inner.state_locks.clone(),
            cache: cache(&options),
            siblings: Siblings::new(options.cache_max_age_ms),
            encoder_budget: inner.encoder_budget.clone(),
            first_jobs: inner.first_jobs.clone(),
            object_budget: object_budget(&options),
            upload_buffers: inner.upload_buffers.clone(),
            uploads: inner.uploads.clone(),
            shares: inner.shares.clone(),
            watch_epoch: inner.watch_epoch.clone(),
            storage_log: inner.storage_log.clone(),
            options,
        }))
    }

    /// Frees the cache, when others serve new requests ([`Files::with_options`]). Requests in
    /// progress end as they would have. Blocks: closing a file may free its space.
    pub fn retire(&self) {
        self.0.cache.close();
        self.0.siblings.clear();
    }

    /// Ends the streams of `?watch` within seconds, also those of values that
    /// [`Files::with_options`] has replaced or returned. Their clients connect again, with the
    /// rights that they have then: call it when rights change.
    pub fn end_watches(&self) {
        self.0.watch_epoch.fetch_add(1, Relaxed);
    }

    /// The metrics `onrush_shares_*`, for
    /// [`Metrics::add_collector`](onrush::Metrics::add_collector): the budgets of which each client
    /// has a share.
    pub fn collector(&self) -> Arc<dyn Collector> {
        Arc::new(SharesCollector::new(&self.0.shares, &self.0.uploads))
    }

    /// The store that contains the objects.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// The pool for operations that may wait for a disk.
    pub fn pool(&self) -> &BlockingPool {
        &self.0.pool
    }
}

fn folder_options(options: &FilesOptions) -> FolderOptions {
    FolderOptions {
        writable: options.allow.delete || (options.allow.put && !options.sink),
        durability: options.durability,
        min_free_bytes: options.min_free_bytes,
        checksums: options.checksums,
        descriptors: options.descriptors.clone(),
        keep_properties: options.webdav,
        ..FolderOptions::default()
    }
}

fn cache(options: &FilesOptions) -> Cache {
    Cache::new(
        options.cache_bytes_max,
        options.cache_files_max,
        options.cache_max_age_ms,
    )
}

fn object_budget(options: &FilesOptions) -> Arc<Budget> {
    let cached = options.cache_bytes_max;
    Budget::new(cached.saturating_add(cached.min(IN_FLIGHT_BYTES_MAX)))
}

/// Whether a request changes nothing, so that it may end with its connection.
fn is_read(request: &Request) -> bool {
    let is_read = matches!(request.method(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND");
    is_read && !UploadId::is_named_by(request)
}

/// A response that is ready, or a request that needs to wait.
enum Reply {
    Ready(Response),
    Pending(Arc<Inner>, Request),
}

impl Handler for Files {
    fn handle(&self, mut request: Request) -> impl Future<Output = Response> + use<> + 'static {
        let reply = match self.0.try_get(&request) {
            Some(response) => Reply::Ready(response),
            None => {
                // One that is invalid is refused where its method is known.
                let _ = ResolvedPath::attach(&mut request);
                Reply::Pending(self.0.clone(), request)
            }
        };
        async move {
            match reply {
                Reply::Ready(response) => response,
                // Boxed, so that requests with a ready response do not carry such a large future.
                Reply::Pending(inner, request) if is_read(&request) => {
                    Box::pin(inner.respond(request)).await
                }
                Reply::Pending(inner, request) => {
                    let worker = request.worker().clone();
                    match Abandoned::new(&inner.shares.changes, Holder::of(&request)) {
                        Ok(abandoned) => {
                            let change = Box::pin(inner.respond(request));
                            run_to_end(&worker, Some(abandoned), change).await
                        }
                        Err(_) => TOO_MANY_ABANDONED.into_response(&request),
                    }
                }
            }
        }
    }
}

impl Inner {
    async fn respond(self: Arc<Inner>, request: Request) -> Response {
        let json = http::negotiate::prefers_json(&request);
        let is_webdav = self.options.webdav && !matches!(request.method(), "GET" | "HEAD");
        let result = match is_webdav {
            true => Box::pin(self.webdav(request)).await,
            false => self.dispatch(request).await,
        };
        result.unwrap_or_else(|failure| failure.render(json))
    }

    /// The response to a request that WebDAV does not refuse.
    async fn dispatch(self: Arc<Inner>, request: Request) -> Result<Response, HttpError> {
        if !self.methods(&request).contains(&request.method()) {
            path::check(&request)?;
            return Ok(self.method_not_allowed(&request, self.why_not_allowed(request.method())));
        }
        // The future of a frequent request is small: it has no room for those of the others.
        match request.method() {
            "OPTIONS" if request.path() == "*" => Ok(self.options_response(&request)),
            "OPTIONS" => path::check(&request).map(|()| self.options_response(&request)),
            _ if UploadId::is_named_by(&request) => Box::pin(self.unfinished(request)).await,
            "GET" | "HEAD" => GetRequest::new(&self, &request).respond().await,
            "LOCK" | "UNLOCK" if self.is_state(&request) => {
                Box::pin(self.change_state_lock(request)).await
            }
            "PUT" | "POST" if self.is_state(&request) => self.put(request).await,
            "PUT" if self.options.sink => self.put_to_sink(request).await,
            "PUT" => match self.begins_upload(&request) {
                None => self.put(request).await,
                Some(fields) => Box::pin(self.put_resumable(request, fields)).await,
            },
            "DELETE" => self.delete(&request).await,
            "POST" if resume::tus::is_tus(&request) && self.offers_uploads() => {
                Box::pin(self.tus(request, None)).await
            }
            "POST" if put::form::is_form(&request) => Box::pin(self.form(request)).await,
            "POST" => path::check(&request).and(Err(NO_FORM)),
            "COPY" | "MOVE" => Box::pin(self.relocate(&request)).await,
            "PROPFIND" if self.options.content_addressed && request.path().ends_with('/') => {
                listing::implied_folder::properties(&request)
            }
            _ => path::check(&request)
                .map(|()| self.method_not_allowed(&request, HttpError::METHOD_NOT_ALLOWED)),
        }
    }

    /// Whether uploads can be continued here.
    fn offers_uploads(&self) -> bool {
        self.options.allow.put && !self.options.sink && self.uploads.are_offered()
    }

    /// The response to `OPTIONS`.
    fn options_response(&self, request: &Request) -> Response {
        let response = match self.options.webdav {
            false => Response::new(204),
            // Some clients of WebDAV do not know 204 here. `MS-Author-Via` is for Windows.
            true => Response::new(200)
                .with_header("DAV", "1, 2")
                .with_header("MS-Author-Via", "DAV"),
        };
        let response = response
            .with_header("Allow", self.methods(request).join(", "))
            .with_header("Accept-Ranges", "bytes");
        match self.offers_uploads() {
            true => {
                let bytes_max = self.uploads.limits().object_bytes_max;
                let joins = self.uploads.can_be_joined();
                self.add_upload_options(resume::tus::add_options(response, bytes_max, joins))
            }
            false => response,
        }
    }

    /// Fails with 501 where another spelling of a path leads to the same object, which a lock does
    /// not protect then.
    async fn check_distinct_names(&self, key: &Key) -> Result<(), HttpError> {
        match self.store.folds_names(key).await {
            Ok(true) => Err(NAMES_FOLD),
            Ok(false) => Ok(()),
            Err(error) => Err(self.store_failure(error, Operation::Read, Some(key))),
        }
    }

    /// Maps an error of the store about `key` (`None`: the top folder) to a response, and logs it
    /// if the storage is the cause.
    fn store_failure(
        &self,
        error: StoreError,
        operation: Operation,
        key: Option<&Key>,
    ) -> HttpError {
        self.storage_log.record(error, key);
        HttpError::from_store(error, operation)
    }
}
