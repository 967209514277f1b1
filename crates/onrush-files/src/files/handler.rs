//! The handler [`Files`].

use crate::files::collector::SharesCollector;
use crate::files::get::compress;
use crate::files::http::http_error::HttpError;
use crate::files::http::open_error::open_error;
use crate::files::locks::table::Locks;
use crate::files::methods::{Lasting, Methods};
use crate::files::object::wanted_digest;
use crate::files::options::FilesOptions;
use crate::files::path::ResolvedPath;
use crate::files::receive::upload::UploadBuffers;
use crate::files::shared::budget::Budget;
use crate::files::shared::client_shares::ClientShares;
use crate::files::shared::run_to_end::{Abandoned, run_to_end};
use crate::files::uploads::{UploadId, Uploads};
#[cfg(feature = "testing")]
use crate::files::webdav;
use crate::shares::Holder;
use onrush::metrics::Collector;
use onrush::{Handler, Request, Response};
use onrush_rt::blocking::BlockingPool;
use onrush_store::cache::is_cache;
use onrush_store::{Folder, FolderOptions, PreparedOptions, Store};
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Of a client that has its share. Others are not refused for it.
const TOO_MANY_ABANDONED: HttpError = HttpError::new(
    429,
    "too many changes from which you have disconnected are in progress; try again later",
);

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
pub struct Files(pub(in crate::files) Arc<Methods>);

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("store", &self.0.objects.store)
            .field("options", &self.0.objects.options)
            .finish_non_exhaustive()
    }
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
        let digests_max = wanted_digest::at_once(&pool);
        let shares = ClientShares::new(options.watchers_max, digests_max, &options.descriptors);
        let lasting = Lasting {
            uploads: Uploads::new(store.clone(), options.upload_limits, shares.files.clone()),
            store,
            pool,
            locks: Arc::new(Locks::new(&shares.locks)),
            shares,
            state_locks: Arc::default(),
            encoder_budget: compress::budget(),
            first_jobs: Budget::new(compress::FIRST_JOBS_MAX),
            upload_buffers: Arc::new(UploadBuffers::new(
                options.upload_bytes_max,
                buffers_per_core,
            )),
            watch_epoch: Arc::default(),
            storage_log: Arc::default(),
        };
        Files(Arc::new(Methods::new(lasting, options)))
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
        let lasting = &self.0.lasting;
        lasting.uploads.set_limits(options.upload_limits);
        lasting.shares.watchers.set_total(options.watchers_max);
        Files(Arc::new(Methods::new(lasting.clone(), options)))
    }

    /// Frees the cache, when others serve new requests ([`Files::with_options`]). Requests in
    /// progress end as they would have. Blocks: closing a file may free its space.
    pub fn retire(&self) {
        self.0.reads.cache.close();
        self.0.reads.siblings.clear();
    }

    /// Ends the streams of `?watch` within seconds, also those of values that
    /// [`Files::with_options`] has replaced or returned. Their clients connect again, with the
    /// rights that they have then: call it when rights change.
    pub fn end_watches(&self) {
        self.0.lasting.watch_epoch.fetch_add(1, Relaxed);
    }

    /// The metrics `onrush_shares_*`, for
    /// [`Metrics::add_collector`](onrush::Metrics::add_collector): the budgets of which each client
    /// has a share.
    pub fn collector(&self) -> Arc<dyn Collector> {
        Arc::new(SharesCollector::new(
            &self.0.lasting.shares,
            &self.0.lasting.uploads,
        ))
    }

    /// The store that contains the objects.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.objects.store
    }

    /// The pool for operations that may wait for a disk.
    pub fn pool(&self) -> &BlockingPool {
        &self.0.lasting.pool
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

/// Whether a request changes nothing, so that it may end with its connection.
fn is_read(request: &Request) -> bool {
    let is_read = matches!(request.method(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND");
    is_read && !UploadId::is_named_by(request)
}

/// A response that is ready, or a request that needs to wait.
enum Reply {
    Ready(Response),
    Pending(Arc<Methods>, Request),
}

impl Handler for Files {
    fn handle(&self, mut request: Request) -> impl Future<Output = Response> + use<> + 'static {
        let reply = match self.0.reads.try_get(&request) {
            Some(response) => Reply::Ready(response),
            None => {
                // One that is invalid is refused where its method is known.
                if request.path().as_bytes().contains(&b'%')
                    && let Ok(path) = ResolvedPath::of(&request)
                    && let Some(decoded) = path.into_decoded()
                {
                    request.set_extension(Rc::new(decoded));
                }
                Reply::Pending(self.0.clone(), request)
            }
        };
        async move {
            match reply {
                Reply::Ready(response) => response,
                // Boxed, so that requests with a ready response do not carry such a large future.
                Reply::Pending(methods, request) if is_read(&request) => {
                    Box::pin(methods.respond(request)).await
                }
                Reply::Pending(methods, request) => {
                    let worker = request.worker().clone();
                    match Abandoned::new(&methods.objects.shares.changes, Holder::of(&request)) {
                        Ok(abandoned) => {
                            let change = Box::pin(methods.respond(request));
                            run_to_end(&worker, Some(abandoned), change).await
                        }
                        Err(_) => TOO_MANY_ABANDONED.into_response(&request),
                    }
                }
            }
        }
    }
}

/// Takes `body` for that of a PROPPATCH, of a LOCK and of a PROPFIND of the same folder. Returns
/// the documents that result, which is none if all refuse it: the responses to a PROPFIND of all
/// properties, of all names and of those that `body` names, and the one to the PROPPATCH. Nothing
/// remains in `files`.
///
/// # Panics
/// If the system has no random numbers, or two threads share `files`.
#[cfg(feature = "testing")]
pub fn received(files: &Files, body: &[u8]) -> Vec<String> {
    webdav::received(&files.0.webdav, body)
}
