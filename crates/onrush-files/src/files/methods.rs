//! What happens to a request: its method decides. Also which methods are served: the value of
//! `Allow`, and why others get 405.

use crate::files::get::read::GetRequest;
use crate::files::get::reads::Reads;
use crate::files::get::siblings::Siblings;
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::http::negotiate::prefers_json;
use crate::files::listing::implied_folder;
use crate::files::listing::list::Listings;
use crate::files::locks::table::Locks;
use crate::files::locks::{Locking, Refusal};
use crate::files::object::cache::Cache;
use crate::files::options::{Allow, FilesOptions};
use crate::files::path;
use crate::files::put::form;
use crate::files::put::state_locks::StateLocks;
use crate::files::put::writes::Writes;
use crate::files::receive::upload::UploadBuffers;
use crate::files::resume::tus;
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::shared::budget::Budget;
use crate::files::shared::client_shares::ClientShares;
use crate::files::shared::objects::Objects;
use crate::files::shared::storage_log::StorageLog;
use crate::files::uploads::{UploadId, Uploads};
use crate::files::webdav::WebDav;
use onrush::{Request, Response};
use onrush_rt::blocking::BlockingPool;
use onrush_store::Store;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const NO_FORM: HttpError = HttpError::new(
    415,
    "POST takes a form with files (multipart/form-data), or the fields of tus; \
     use PUT for one file",
);

/// The maximum memory of small objects that are not in the cache but are being sent to slow
/// clients.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

const EXISTS: HttpError = HttpError::new(405, "there is an object or a folder at this path");

/// What stays when the options change.
#[derive(Clone)]
pub(in crate::files) struct Lasting {
    pub(in crate::files) store: Arc<dyn Store>,
    pub(in crate::files) pool: BlockingPool,
    pub(in crate::files) locks: Arc<Locks>,
    pub(in crate::files) state_locks: Arc<StateLocks>,
    pub(in crate::files) encoder_budget: Arc<Budget>,
    pub(in crate::files) first_jobs: Arc<Budget>,
    pub(in crate::files) upload_buffers: Arc<UploadBuffers>,
    pub(in crate::files) uploads: Arc<Uploads>,
    pub(in crate::files) shares: Arc<ClientShares>,
    pub(in crate::files) watch_epoch: Arc<AtomicU64>,
    pub(in crate::files) storage_log: Arc<StorageLog>,
}

/// All that serves requests.
pub(in crate::files) struct Methods {
    pub(in crate::files) objects: Arc<Objects>,
    pub(in crate::files) reads: Arc<Reads>,
    pub(in crate::files) listings: Arc<Listings>,
    pub(in crate::files) writes: Arc<Writes>,
    pub(in crate::files) protocols: Arc<UploadProtocols>,
    pub(in crate::files) webdav: Arc<WebDav>,
    pub(in crate::files) lasting: Lasting,
    /// The methods of objects and folders that are served.
    pub(in crate::files) allowed: Vec<&'static str>,
    /// Those of states of Terraform.
    pub(in crate::files) allowed_of_states: Vec<&'static str>,
}

impl Methods {
    pub(in crate::files) fn new(lasting: Lasting, options: FilesOptions) -> Methods {
        lasting.locks.set_covers_siblings(options.precompressed);
        let (allowed, allowed_of_states) = (
            methods(options.allow, &options, false),
            methods(options.allow, &options, true),
        );
        let (siblings, object_budget) = (
            Siblings::new(options.cache_max_age_ms),
            object_budget(&options),
        );
        let cache = Arc::new(cache(&options));
        let objects = Arc::new(Objects {
            store: lasting.store.clone(),
            options,
            shares: lasting.shares.clone(),
            storage_log: lasting.storage_log.clone(),
        });
        let locking = Arc::new(Locking {
            objects: objects.clone(),
            locks: lasting.locks.clone(),
        });
        let writes = Arc::new(Writes {
            objects: objects.clone(),
            upload_buffers: lasting.upload_buffers.clone(),
            uploads: lasting.uploads.clone(),
            locking: locking.clone(),
            state_locks: lasting.state_locks.clone(),
        });
        let protocols = Arc::new(UploadProtocols {
            objects: objects.clone(),
            upload_buffers: lasting.upload_buffers.clone(),
            uploads: lasting.uploads.clone(),
        });
        Methods {
            reads: Arc::new(Reads {
                objects: objects.clone(),
                pool: lasting.pool.clone(),
                cache: cache.clone(),
                siblings,
                encoder_budget: lasting.encoder_budget.clone(),
                first_jobs: lasting.first_jobs.clone(),
                object_budget,
            }),
            listings: Arc::new(Listings {
                objects: objects.clone(),
                pool: lasting.pool.clone(),
                cache,
                uploads: lasting.uploads.clone(),
                watch_epoch: lasting.watch_epoch.clone(),
            }),
            webdav: Arc::new(WebDav {
                objects: objects.clone(),
                locking,
                writes: writes.clone(),
                protocols: protocols.clone(),
            }),
            objects,
            writes,
            protocols,
            lasting,
            allowed,
            allowed_of_states,
        }
    }

    pub(in crate::files) async fn respond(self: Arc<Methods>, request: Request) -> Response {
        let json = prefers_json(&request);
        let is_webdav = self.objects.options.webdav && !matches!(request.method(), "GET" | "HEAD");
        let result = match is_webdav {
            true => {
                let response = Box::pin(self.webdav(request)).await;
                Ok(response.unwrap_or_else(|refusal| refusal.into_response(json)))
            }
            false => self.dispatch(request).await,
        };
        result.unwrap_or_else(|failure| failure.render(json))
    }

    /// The response of WebDAV: to its own methods, and to the others between the begin of a change
    /// and its end.
    async fn webdav(self: Arc<Methods>, request: Request) -> Result<Response, Refusal> {
        let webdav = self.webdav.clone();
        let options = &self.objects.options;
        let may_write = options.allow.put && !options.sink;
        match request.method() {
            "OPTIONS" => return Ok(self.dispatch(request).await?),
            "PROPFIND" => return webdav.propfind(request).await,
            _ if self.objects.is_state_lock(&request) => return Ok(self.dispatch(request).await?),
            "LOCK" if may_write => return webdav.lock(request).await,
            "UNLOCK" if may_write => return webdav.unlock(&request),
            _ => {}
        }
        let change = webdav.begin_change(&request).await?;
        let method = request.method();
        let moves = matches!(method, "MOVE" | "DELETE") && !UploadId::is_named_by(&request);
        let gone = match moves {
            true => Some(webdav.resource(&request, Operation::Write)?),
            false => None,
        };
        let response = match method {
            "MKCOL" if may_write => match webdav.mkcol(&request).await? {
                Some(response) => response,
                None => self.method_not_allowed(&request, EXISTS),
            },
            "PROPPATCH" if may_write => webdav.proppatch(request).await?,
            _ => self.dispatch(request).await?,
        };
        if let Some(gone) = gone
            && matches!(response.status(), 201 | 204)
        {
            change.forget(gone.bytes());
        }
        Ok(response)
    }

    /// The response to a request that WebDAV does not refuse.
    async fn dispatch(self: Arc<Methods>, request: Request) -> Result<Response, HttpError> {
        if !self.methods(&request).contains(&request.method()) {
            path::check(&request)?;
            return Ok(self.method_not_allowed(&request, self.why_not_allowed(request.method())));
        }
        // The future of a frequent request is small: it has no room for those of the others.
        match request.method() {
            "OPTIONS" if request.path() == "*" => Ok(self.options_response(&request)),
            "OPTIONS" => path::check(&request).map(|()| self.options_response(&request)),
            _ if UploadId::is_named_by(&request) => {
                Box::pin(self.protocols.unfinished(request)).await
            }
            "GET" | "HEAD" => {
                GetRequest::new(&self.reads, &self.listings, &request)
                    .respond()
                    .await
            }
            "LOCK" | "UNLOCK" if self.objects.is_state(&request) => {
                Box::pin(self.writes.change_state_lock(request)).await
            }
            "PUT" | "POST" if self.objects.is_state(&request) => self.writes.put(request).await,
            "PUT" if self.objects.options.sink => self.writes.put_to_sink(request).await,
            "PUT" => match self.protocols.begins_upload(&request) {
                None => self.writes.put(request).await,
                Some(fields) => Box::pin(self.protocols.put_resumable(request, fields)).await,
            },
            "DELETE" => self.writes.delete(&request).await,
            "POST"
                if tus::is_tus(&request)
                    && self.protocols.uploads.serves(&self.objects.options) =>
            {
                Box::pin(self.protocols.tus(request, None)).await
            }
            "POST" if form::is_form(&request) => Box::pin(self.writes.form(request)).await,
            "POST" => path::check(&request).and(Err(NO_FORM)),
            "COPY" | "MOVE" => Box::pin(self.writes.relocate(&request)).await,
            "PROPFIND"
                if self.objects.options.content_addressed && request.path().ends_with('/') =>
            {
                implied_folder::properties(&request)
            }
            _ => path::check(&request)
                .map(|()| self.method_not_allowed(&request, HttpError::METHOD_NOT_ALLOWED)),
        }
    }

    /// The response to `OPTIONS`.
    fn options_response(&self, request: &Request) -> Response {
        let response = match self.objects.options.webdav {
            false => Response::new(204),
            // Some clients of WebDAV do not know 204 here. `MS-Author-Via` is for Windows.
            true => Response::new(200)
                .with_header("DAV", "1, 2")
                .with_header("MS-Author-Via", "DAV"),
        };
        let response = response
            .with_header("Allow", self.methods(request).join(", "))
            .with_header("Accept-Ranges", "bytes");
        match self.protocols.uploads.serves(&self.objects.options) {
            true => {
                let bytes_max = self.protocols.uploads.limits().object_bytes_max;
                let joins = self.protocols.uploads.can_be_joined();
                self.protocols
                    .add_upload_options(tus::add_options(response, bytes_max, joins))
            }
            false => response,
        }
    }

    /// The methods that are served at the path of a request: what [`Methods::dispatch`] and WebDAV
    /// accept, and the value of `Allow`.
    pub(in crate::files) fn methods(&self, request: &Request) -> &[&'static str] {
        let is_asked = request.method() == "OPTIONS" && UploadId::of_request(request).is_some();
        let is_upload = is_asked || UploadId::is_named_by(request);
        match is_upload && self.protocols.uploads.serves(&self.objects.options) {
            true => &["DELETE", "HEAD", "OPTIONS", "PATCH"],
            false if self.objects.is_state(request) => &self.allowed_of_states,
            false => &self.allowed,
        }
    }

    /// A 405 with the field `Allow`.
    fn method_not_allowed(&self, request: &Request, failure: HttpError) -> Response {
        let response = failure.into_response(request);
        response.with_header("Allow", self.methods(request).join(", "))
    }

    /// Why a method is not among [`Methods::methods`]: another `--allow` may permit it.
    fn why_not_allowed(&self, method: &str) -> HttpError {
        let all = Allow {
            put: true,
            delete: true,
            delete_folders: true,
        };
        let may_be_permitted = methods(all, &self.objects.options, false).contains(&method);
        let given = self.objects.options.allow;
        match may_be_permitted && !self.allowed.contains(&method) {
            true if given.put || given.delete || self.objects.options.sink => {
                HttpError::CHANGE_NOT_ALLOWED
            }
            true => HttpError::READ_ONLY,
            false => HttpError::METHOD_NOT_ALLOWED,
        }
    }
}

/// The methods of objects and folders that are served with these options, if `allow` were theirs.
/// `of_state`: those of states of Terraform.
pub(in crate::files) fn methods(
    allow: Allow,
    options: &FilesOptions,
    of_state: bool,
) -> Vec<&'static str> {
    let Allow { put, delete, .. } = allow;
    let stores = put && !options.sink;
    let methods = [
        ("COPY", stores),
        ("DELETE", delete),
        ("GET", true),
        ("HEAD", true),
        ("LOCK", stores && (options.webdav || of_state)),
        ("MKCOL", stores && options.webdav),
        // A cache has objects by name or by content, and renames neither.
        ("MOVE", stores && delete && !options.content_addressed),
        ("OPTIONS", true),
        ("POST", stores),
        ("PROPFIND", options.webdav || options.content_addressed),
        ("PROPPATCH", stores && options.webdav),
        ("PUT", put || options.sink),
        ("UNLOCK", stores && (options.webdav || of_state)),
    ];
    let permitted = methods.iter().filter(|(_, is_permitted)| *is_permitted);
    permitted.map(|(name, _)| *name).collect()
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
