//! GET and HEAD. If an object can be served without waiting for a disk, the response is ready at
//! once. Otherwise a future waits for the disk.

use crate::files::get::reads::Reads;
use crate::files::get::siblings::Known;
use crate::files::http::codings;
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::listing::list::Listings;
use crate::files::object::cache::CacheContext;
use crate::files::object::wanted_digest;
use crate::files::object::{self, LoadedObject};
use crate::files::path::artifacts;
use crate::files::path::assets;
use crate::files::path::{self, Split, Target};
use crate::files::shared::client_rights::may_read_index;
use crate::files::uploads::UploadId;
use crate::rights::INDEX;
use crate::shares::Holder;
use onrush::compression::{Accepted, Coding};
use onrush::selection::Selection;
use onrush::{Body, Request, Response, WorkerHandle};
use onrush_proto::precondition::{Current, Outcome, evaluate};
use onrush_proto::range;
use onrush_store::{Key, Object, Result, StoreError, Wanted};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often an object is opened that is replaced each time.
const OPENED_MAX: u32 = 4;

/// What an object is for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Role {
    /// What the path names.
    Named,
    /// The page for a path that names nothing. Preconditions and ranges concern an object that the
    /// path names, and not this one.
    NotFoundPage,
}

impl Reads {
    /// The response to GET or HEAD, if that is possible without waiting. `None` for other methods.
    pub(in crate::files) fn try_get(self: &Arc<Self>, request: &Request) -> Option<Response> {
        if !matches!(request.method(), "GET" | "HEAD") || UploadId::is_named_by(request) {
            return None;
        }
        let split = path::split(request).ok()?;
        let index;
        let (subpath, is_index) = match split.subpath {
            "" => (INDEX, true),
            folder if folder.ends_with('/') => {
                index = [folder, INDEX].concat();
                (&index[..], true)
            }
            subpath => (subpath, false),
        };
        // With the right to list only, the folder is listed.
        if is_index && (!self.objects.options.site || !may_read_index(request)) {
            return None;
        }
        let context = CacheContext::of(request.worker());
        let accepted = self.accepted(request);
        if let Some(accepted) = accepted.filter(|_| self.objects.options.precompressed)
            && !assets::is_name(subpath.as_bytes())
            && codings::of_sibling(subpath.as_bytes()).is_none()
        {
            if request.header("range").is_some() {
                return None; // The form that `If-Range` names is looked for.
            }
            let known = (self.siblings).get(subpath.as_bytes(), context, &*self.objects.store)?;
            if let Some(coding) = known.choose(accepted, request) {
                return self.try_sibling(&known, coding, context, request);
            }
        }
        if let Some(loaded) = self.cache.get_fresh(subpath.as_bytes(), context, |key| {
            self.objects.store.generation(key)
        }) {
            if loaded.is_unchanged() {
                return self.ready_response(request, loaded, accepted);
            }
            self.cache.remove(subpath.as_bytes(), context.worker);
        }
        // No object has one of these names, so none is in the cache.
        if let Some(response) = assets::respond(request, subpath) {
            return Some(response);
        }
        let target = match path::target(request, Operation::Read).ok()? {
            Target::Folder(folder) if is_index => Target::Object(path::index(folder.as_ref())?),
            target => target,
        };
        let Target::Object(key) = target
            .check_visible(&self.objects.options, Operation::Read)
            .ok()?
        else {
            return None;
        };
        if let Some(response) = artifacts::status(&self.objects.options, key.as_bytes()) {
            return Some(response);
        }
        match self.try_open(&key, context, request)? {
            Ok(loaded) => self.ready_response(request, loaded, accepted),
            Err(StoreError::NotFound | StoreError::IsDirectory) if self.objects.options.site => {
                None
            }
            Err(error) => Some(self.error_response(request, split, &key, error)),
        }
    }

    /// The codings that a request accepts, if responses depend on them. With `Range`, a client gets
    /// the object itself, unless `If-Range` has the tag of another form: what it has received
    /// before may have been decoded, and then no part of an encoded form continues it.
    fn accepted(&self, request: &Request) -> Option<Accepted> {
        if !self.objects.options.varies_by_coding() {
            return None;
        }
        let accepted = Some(Accepted::of(request)).filter(|accepted| !accepted.is_none())?;
        let names_form = || {
            request
                .header("if-range")
                .is_some_and(|tag| tag.starts_with(b"\""))
        };
        (request.header("range").is_none() || names_form()).then_some(accepted)
    }

    /// The response with a loaded object. `None` if it is going to be compressed.
    fn ready_response(
        &self,
        request: &Request,
        loaded: LoadedObject,
        accepted: Option<Accepted>,
    ) -> Option<Response> {
        if let Some(accepted) = accepted
            && self.coding_for(request, &loaded, accepted).is_some()
        {
            return None;
        }
        respond_at_once(request, loaded)
    }

    /// The response with a sibling of the object that a request names, if that is possible without
    /// waiting.
    fn try_sibling(
        self: &Arc<Self>,
        known: &Known,
        coding: Coding,
        context: CacheContext,
        request: &Request,
    ) -> Option<Response> {
        let key = known.sibling(coding);
        let cached = self.cache.get_fresh(key.as_bytes(), context, |key| {
            self.objects.store.generation(key)
        });
        let loaded = match cached.filter(LoadedObject::is_unchanged) {
            Some(loaded) => loaded,
            None => self.try_open(key, context, request)?.ok()?,
        };
        let sibling = known.represent(coding, loaded)?;
        respond_at_once(request, self.prepared(sibling))
    }

    /// Opens and loads an object without waiting. `None` if that is impossible.
    fn try_open(
        self: &Arc<Self>,
        key: &Key,
        context: CacheContext,
        request: &Request,
    ) -> Option<Result<LoadedObject>> {
        let generation = self.objects.store.generation(key);
        let mut object = match self.objects.store.try_get(key)? {
            Ok(object) => object,
            Err(StoreError::Busy) => return None, // It may work after other files are closed.
            Err(error) => return Some(Err(error)),
        };
        let may_keep = self.hold_file(&mut object, request, true).ok()?;
        let fresh_ms = fresh_ms(&object);
        let renewed = (self.cache).revalidate(key, context, generation, &object, fresh_ms);
        if let Some(loaded) = renewed {
            return Some(Ok(loaded));
        }
        let loaded = LoadedObject::try_load(
            &object,
            key,
            context.now_s,
            &self.object_budget,
            &self.objects.options.types,
        )?;
        let loaded = self.prepared(loaded);
        if may_keep {
            self.cache_object(key, context, generation, (&loaded, fresh_ms), request);
        }
        Some(Ok(loaded))
    }

    /// Takes a place for the file of an object that does not fit into memory, until it is closed,
    /// if the response may have content. Returns whether the cache may keep the object: not its
    /// file while others need one.
    fn hold_file(&self, object: &mut Object, request: &Request, reads_all: bool) -> Result<bool> {
        if !self.objects.shares.files.are_contested()
            || !object::stays_open(object, reads_all, &self.object_budget)
        {
            return Ok(true);
        }
        // Only tags are certain: the response has a time that is not in the future, what is sent in
        // the place of an object that is missing has no preconditions, and a compressed form has a
        // tag of its own.
        let is_certain = !self.objects.options.site && !self.objects.options.compress;
        let proceeds = || {
            let current = Current {
                modified_s: None,
                ..object::current_of(object.meta())
            };
            evaluate(true, &current, request.headers()) == Outcome::Proceed
        };
        let may_have_content = request.method() == "GET" && (!is_certain || proceeds());
        if may_have_content && let Some(file) = object.file_mut() {
            (self.objects.shares.files).hold_download(file, || Holder::of(request))?;
        }
        Ok(false)
    }

    /// Opens and loads an object. If descriptors are short, closes idle cached files and tries
    /// again.
    pub(in crate::files) async fn open(
        self: &Arc<Self>,
        key: &Key,
        request: &Request,
        wanted: Wanted,
    ) -> Result<LoadedObject> {
        let context = CacheContext::of(request.worker());
        let generation = self.objects.store.generation(key);
        let (loaded, fresh_ms, may_keep) =
            match self.load(key, context, wanted.clone(), request).await {
                Err(StoreError::Busy) => {
                    let idle = self.cache.take_idle_files();
                    self.pool.run(move || drop(idle)).await?;
                    self.load(key, context, wanted, request).await?
                }
                result => result?,
            };
        let loaded = self.prepared(loaded);
        if may_keep {
            self.cache_object(key, context, generation, (&loaded, fresh_ms), request);
        }
        Ok(loaded)
    }

    /// Opens and loads an object. Returns also for how long the store allows its use, and whether
    /// the cache may keep it.
    async fn load(
        &self,
        key: &Key,
        context: CacheContext,
        wanted: Wanted,
        request: &Request,
    ) -> Result<(LoadedObject, u64, bool)> {
        let reads_all = wanted == Wanted::All;
        let mut object = self.objects.store.open(key, wanted).await?;
        let may_keep = self.hold_file(&mut object, request, reads_all)?;
        let fresh_ms = fresh_ms(&object);
        let loaded = LoadedObject::load(
            &object,
            key,
            context.now_s,
            reads_all,
            &self.object_budget,
            &self.objects.options.types,
        );
        Ok((loaded.await?, fresh_ms, may_keep))
    }

    /// Adds the fields that depend on the options: `Content-Security-Policy: sandbox` to an object
    /// with scripts, unless the folder is a site, and `Vary` if responses depend on the codings
    /// that a client accepts. The cache keeps the field lines, so this is done once per opening and
    /// not once per request.
    pub(in crate::files) fn prepared(&self, loaded: LoadedObject) -> LoadedObject {
        let loaded = match self.objects.options.varies_by_coding() {
            true => loaded.varying(),
            false => loaded,
        };
        match self.objects.options.site {
            true => loaded,
            false => loaded.sandboxed(),
        }
    }

    /// The response to an error of opening. A folder is redirected to its path with a trailing
    /// slash.
    pub(in crate::files) fn error_response(
        &self,
        request: &Request,
        split: Split<'_>,
        key: &Key,
        error: StoreError,
    ) -> Response {
        if error != StoreError::IsDirectory {
            let failure = self
                .objects
                .store_failure(error, Operation::Read, Some(key));
            return failure.into_response(request);
        }
        let location = path::folder_href(split.mount, key.as_bytes(), request.query());
        Response::new(301)
            .with_header("Location", location)
            .with_header("Cache-Control", "no-cache")
    }

    /// Adds a loaded object to the cache. Starts the task that closes cached files when their time
    /// is over, if none is running.
    fn cache_object(
        self: &Arc<Self>,
        key: &Key,
        context: CacheContext,
        generation: Option<u64>,
        (loaded, fresh_ms): (&LoadedObject, u64),
        request: &Request,
    ) {
        if (self.cache).add(key, context, generation, loaded, fresh_ms) {
            let closer = FileCloser {
                reads: Arc::downgrade(self),
                worker: context.worker,
            };
            let closer = closer.run(request.worker().clone());
            request.worker().spawn(closer).detach();
        }
    }
}

/// A GET or HEAD that waits for the disk: what the path names is found ([`GetRequest::resolve`]),
/// loaded, perhaps encoded, and sent.
pub(in crate::files) struct GetRequest<'r> {
    pub(in crate::files) reads: &'r Arc<Reads>,
    pub(in crate::files) listings: &'r Arc<Listings>,
    pub(in crate::files) request: &'r Request,
    /// The codings that the response may have.
    accepted: Option<Accepted>,
}

impl<'r> GetRequest<'r> {
    pub(in crate::files) fn new(
        reads: &'r Arc<Reads>,
        listings: &'r Arc<Listings>,
        request: &'r Request,
    ) -> GetRequest<'r> {
        GetRequest {
            reads,
            listings,
            request,
            accepted: reads.accepted(request),
        }
    }

    /// As [`GetRequest::serve`]. `None` if there is no object.
    pub(in crate::files) async fn serve_if_found(
        &self,
        key: &Key,
        role: Role,
    ) -> Result<Option<Response>, HttpError> {
        match self.serve(key, role).await {
            Ok(response) => Ok(Some(response)),
            Err(StoreError::NotFound | StoreError::IsDirectory) => Ok(None),
            Err(error) => {
                Err((self.reads.objects).store_failure(error, Operation::Read, Some(key)))
            }
        }
    }

    /// The response with an object. Waits for the first bytes of one that is not local: once the
    /// head is sent, a failure can only end the connection. If the object is replaced between two
    /// requests to the store, it is loaded again.
    pub(in crate::files) async fn serve(&self, key: &Key, role: Role) -> Result<Response> {
        let (mut wanted, mut more) = (wanted(self.request), 1..OPENED_MAX);
        loop {
            match Box::pin(self.serve_once(key, role, wanted)).await {
                Err(StoreError::Changed) if more.next().is_some() => wanted = Wanted::All,
                result => return result,
            }
        }
    }

    /// As [`GetRequest::serve`]. Fails with [`StoreError::Changed`] if the object is replaced.
    async fn serve_once(&self, key: &Key, role: Role, wanted: Wanted) -> Result<Response> {
        let loaded = self.load(key, wanted).await?;
        let mut response = match role {
            Role::Named => self.encode(loaded).await,
            Role::NotFoundPage => full_response(loaded).with_status(404),
        };
        if self.request.method() != "HEAD" {
            (response.wait_for_body().await).map_err(|error| match error.downcast() {
                Ok(error) => error,
                Err(error) => StoreError::Io((&error).into()),
            })?;
        }
        Ok(response)
    }

    /// Loads an object, or the precompressed form of it that suits the request best.
    async fn load(&self, key: &Key, wanted: Wanted) -> Result<LoadedObject> {
        let (reads, request) = (self.reads, self.request);
        match self
            .accepted
            .filter(|_| reads.objects.options.precompressed)
        {
            Some(accepted) => Box::pin(reads.open_for(key, request, accepted, wanted)).await,
            None => reads.open(key, request, wanted).await,
        }
    }

    /// The response with a loaded object, perhaps compressed.
    async fn encode(&self, loaded: LoadedObject) -> Response {
        let (reads, request) = (self.reads, self.request);
        let coding = |accepted| reads.coding_for(request, &loaded, accepted);
        if let Some(coding) = self.accepted.and_then(coding)
            && let Some(response) = Box::pin(reads.compressed(request, &loaded, coding)).await
        {
            return response;
        }
        self.add_digest(loaded).await
    }

    /// As [`respond`], with the digest that the request asks for.
    async fn add_digest(&self, loaded: LoadedObject) -> Response {
        let (reads, request) = (self.reads, self.request);
        let Some(algorithm) = wanted_digest::wanted(request) else {
            return respond(request, loaded);
        };
        let client = (&reads.objects.shares.digests, Holder::of(request));
        let digest = wanted_digest::compute(&loaded, algorithm, &reads.pool, client).await;
        wanted_digest::add(respond(request, loaded), digest)
    }
}

/// The task that closes the files of a worker's shard. It ends when no file is left, or with the
/// [`Reads`], or with the worker. Workers may share a shard.
struct FileCloser {
    reads: Weak<Reads>,
    worker: usize,
}

impl FileCloser {
    async fn run(mut self, worker: WorkerHandle) {
        while let Some(reads) = self.reads.upgrade() {
            let (stale, next_ms) = reads.cache.take_stale(CacheContext::of(&worker));
            if !stale.is_empty() {
                reads.pool.run(move || drop(stale)).detach();
            }
            let Some(next_ms) = next_ms else {
                // What another worker has added since has a closer of its own.
                self.reads = Weak::new();
                return;
            };
            drop(reads);
            worker.sleep(Duration::from_millis(next_ms)).await;
        }
    }
}

/// Only if the task has not ended by itself.
impl Drop for FileCloser {
    fn drop(&mut self) {
        if let Some(reads) = self.reads.upgrade() {
            drop(reads.cache.take_all_files(self.worker)); // The worker ends, so it may block.
        }
    }
}

/// The time for which the store allows that an object is served without asking it again.
fn fresh_ms(object: &Object) -> u64 {
    object.cached().map_or(u64::MAX, |cached| cached.fresh_ms)
}

/// What the response will most likely contain. A request with `If-None-Match` or
/// `If-Modified-Since` comes from a client that has the object.
fn wanted(request: &Request) -> Wanted {
    let may_be_304 = ["if-none-match", "if-modified-since"];
    if request.method() == "HEAD" || may_be_304.iter().any(|name| request.header(name).is_some()) {
        return Wanted::Properties;
    }
    match request.header("range").map(range::requested_bytes) {
        None => Wanted::All,
        Some(Some(range)) => Wanted::Range(range),
        // The size is needed first.
        Some(None) => Wanted::Properties,
    }
}

/// As [`respond`], unless that has to wait for a digest.
fn respond_at_once(request: &Request, loaded: LoadedObject) -> Option<Response> {
    if is_plain(request) {
        return Some(full_response(loaded));
    }
    match wanted_digest::wanted(request) {
        None => Some(respond(request, loaded)),
        Some(_) => None,
    }
}

/// The response with an object, after preconditions and ranges are evaluated.
pub(in crate::files) fn respond(request: &Request, loaded: LoadedObject) -> Response {
    if is_plain(request) {
        return full_response(loaded);
    }
    match loaded.representation().select(request) {
        Selection::Whole => full_response(loaded),
        Selection::Part {
            range,
            content_range,
        } => {
            let body = loaded.slice(range);
            partial(loaded, body).with_header("Content-Range", content_range)
        }
        Selection::Parts {
            pieces,
            content_type,
        } => {
            let body = loaded.body_of(pieces);
            partial(loaded, body).with_header("Content-Type", content_type)
        }
        Selection::NotModified => Response::new(304).with_fields(loaded.fields),
        Selection::PreconditionFailed => HttpError::PRECONDITION_FAILED.into_response(request),
        Selection::Unsatisfiable { content_range } => {
            let failure = HttpError::new(416, "the range contains no byte of the object");
            failure
                .into_response(request)
                .with_header("Content-Range", content_range)
        }
    }
}

/// Parts of an object (RFC 9110 §15.3.7).
fn partial(loaded: LoadedObject, body: Body) -> Response {
    loaded.add_fields(Response::with_body(body).with_status(206))
}

#[inline]
pub(in crate::files) fn full_response(loaded: LoadedObject) -> Response {
    let response = Response::with_body(loaded.body());
    loaded.add_fields(response)
}

/// Whether a request has neither preconditions nor a range, nor asks for a digest. Nearly all
/// requests are plain.
fn is_plain(request: &Request) -> bool {
    request.headers().all(|(name, _)| match name.as_bytes() {
        [b'i' | b'I', b'f' | b'F', b'-', ..] | [b'w' | b'W', ..] => false,
        name => !name.eq_ignore_ascii_case(b"range"),
    })
}
