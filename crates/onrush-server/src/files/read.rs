//! GET and HEAD. What is hot is answered at once, without leaving the worker and without a task;
//! what would wait for a disk is answered by a future.
//!
//! This module must not know how listings look.

use super::cache::Moment;
use super::failure::{Failure, While};
use super::object::Found;
use super::path::{self, Split, Target};
use super::{Inner, ranges};
use onrush::{Request, Response, WorkerHandle};
use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::{Outcome, evaluate};
use onrush_proto::range;
use onrush_store::{Key, Result, Store, StoreError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a folder answers instead of a listing, where sites are served.
const INDEX: &str = "index.html";

impl Inner {
    /// The answer, if it can be given without waiting for anything.
    pub(super) fn try_respond(self: &Arc<Self>, request: &Request) -> Option<Response> {
        if !matches!(request.method(), "GET" | "HEAD") {
            return None;
        }
        let split = path::split(request).ok()?;
        let index;
        let (rest, is_index) = match split.rest {
            "" => (INDEX, true),
            folder if folder.ends_with('/') => {
                index = [folder, INDEX].concat();
                (&index[..], true)
            }
            rest => (rest, false),
        };
        if is_index && !self.options.site {
            return None;
        }
        let at = moment(request.worker());
        if let Some(found) = self
            .cache
            .fresh(rest.as_bytes(), at, |key| self.store.generation(key))
        {
            if found.is_unchanged() {
                return Some(respond(request, found));
            }
            self.cache.forget(rest.as_bytes(), at.worker);
        }
        let target = path::target(rest, While::Reading).ok()?;
        let Target::Object(key) = target.visible(&self.options, While::Reading).ok()? else {
            return None;
        };
        match self.open_now(&key, at, request)? {
            Ok(found) => Some(respond(request, found)),
            Err(StoreError::NotFound | StoreError::IsDirectory) if is_index => None,
            Err(error) => Some(self.error_response(request, split, &key, error)),
        }
    }

    /// The answer, whatever it takes.
    pub(super) async fn get(self: &Arc<Self>, request: &Request) -> Result<Response, Failure> {
        let split = path::split(request)?;
        let target = path::target(split.rest, While::Reading)?;
        match target.visible(&self.options, While::Reading)? {
            Target::Object(key) => Ok(match self.open(&key, request).await {
                Ok(found) => respond(request, found),
                Err(error) => self.error_response(request, split, &key, error),
            }),
            Target::Folder(folder) => {
                if self.options.site
                    && let Some(found) = self.index(folder.as_ref(), request).await?
                {
                    return Ok(respond(request, found));
                }
                self.list(request, split, folder).await
            }
        }
    }

    /// A folder's `index.html`, if it has one.
    async fn index(
        self: &Arc<Self>,
        folder: Option<&Key>,
        request: &Request,
    ) -> Result<Option<Found>, Failure> {
        let mut bytes = Vec::new();
        if let Some(folder) = folder {
            bytes.extend_from_slice(folder.as_bytes());
            bytes.push(b'/');
        }
        bytes.extend_from_slice(INDEX.as_bytes());
        let Ok(key) = Key::parse(&bytes) else {
            return Ok(None);
        };
        match self.open(&key, request).await {
            Ok(found) => Ok(Some(found)),
            Err(StoreError::NotFound | StoreError::IsDirectory) => Ok(None),
            Err(error) => Err(self.failed(error, While::Reading, Some(&key))),
        }
    }

    /// Opens and reads what can be had without waiting; `None` otherwise.
    fn open_now(
        self: &Arc<Self>,
        key: &Key,
        at: Moment,
        request: &Request,
    ) -> Option<Result<Found>> {
        let generation = self.store.generation(key);
        let object = match self.store.try_open_now(key)? {
            Ok(object) => object,
            Err(StoreError::Busy) => return None, // Waiting for others to close may help.
            Err(error) => return Some(Err(error)),
        };
        let version = &object.meta().version;
        if let Some(found) = self.cache.confirmed(key, at, generation, version) {
            return Some(Ok(found));
        }
        let found = Found::now(&object, key, at.now_s, &self.memory, &self.options.types)?;
        let found = self.restricted(found);
        self.keep(key, at, generation, &found, request);
        Some(Ok(found))
    }

    async fn open(self: &Arc<Self>, key: &Key, request: &Request) -> Result<Found> {
        let at = moment(request.worker());
        let generation = self.store.generation(key);
        let found = match self.load(key, at).await {
            Err(StoreError::Busy) => {
                let idle = self.cache.take_idle();
                self.store.pool().run(move || drop(idle)).await?;
                self.load(key, at).await?
            }
            result => result?,
        };
        let found = self.restricted(found);
        self.keep(key, at, generation, &found, request);
        Ok(found)
    }

    async fn load(&self, key: &Key, at: Moment) -> Result<Found> {
        let object = self.store.get(key).await?;
        Found::load(&object, key, at.now_s, &self.memory, &self.options.types).await
    }

    /// An object as opened, with a sandbox unless the folder is a site. The cache keeps it with its
    /// field lines, so this is done once for each opening and not for each request.
    fn restricted(&self, found: Found) -> Found {
        match self.options.site {
            true => found,
            false => found.sandboxed(),
        }
    }

    /// The response when there is no object: a folder is elsewhere, one slash further.
    fn error_response(
        &self,
        request: &Request,
        split: Split<'_>,
        key: &Key,
        error: StoreError,
    ) -> Response {
        if error != StoreError::IsDirectory {
            let failure = self.failed(error, While::Reading, Some(key));
            return failure.into_response(request);
        }
        let location = path::folder_href(split.mount, key.as_bytes(), request.query());
        Response::new(301)
            .with_header("Location", location)
            .with_header("Cache-Control", "no-cache")
    }

    /// Keeps what was opened in the cache, and has files closed there when their time is over.
    fn keep(
        self: &Arc<Self>,
        key: &Key,
        at: Moment,
        generation: u64,
        found: &Found,
        request: &Request,
    ) {
        if self.cache.keep(key, at, generation, found) {
            let closing = Closing {
                inner: Arc::downgrade(self),
                worker: at.worker,
            };
            let closing = closing.run(request.worker().clone());
            request.worker().spawn(closing).detach();
        }
    }
}

/// What closes the files that a worker's part of the cache keeps open. It ends when there are none,
/// or with the [`Inner`], or with the worker.
struct Closing {
    inner: Weak<Inner>,
    worker: usize,
}

impl Closing {
    async fn run(self, worker: WorkerHandle) {
        while let Some(inner) = self.inner.upgrade() {
            let (stale, next_ms) = inner.cache.take_stale(moment(&worker));
            if !stale.is_empty() {
                inner.store.pool().run(move || drop(stale)).detach();
            }
            let Some(next_ms) = next_ms else { return };
            drop(inner);
            worker.sleep(Duration::from_millis(next_ms)).await;
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            drop(inner.cache.abandon(self.worker)); // The worker ends, and may wait.
        }
    }
}

fn moment(worker: &WorkerHandle) -> Moment {
    Moment {
        worker: worker.index(),
        now_ms: worker.now_ms(),
        now_s: worker.unix_seconds(),
    }
}

/// The answer with an object, as far as its conditions and ranges want it.
fn respond(request: &Request, found: Found) -> Response {
    if is_plain(request) {
        return whole(found);
    }
    match evaluate(true, &found.current(), request.headers()) {
        Outcome::Proceed => {}
        Outcome::NotModified => return Response::new(304).with_fields(found.fields),
        Outcome::Failed => return Failure::CHANGED.into_response(request),
    }
    // For HEAD a range has no meaning (RFC 9110 §14.2).
    match request
        .header("range")
        .filter(|_| request.method() == "GET")
    {
        Some(value) if range_counts(request, &found) => {
            ranges::respond(request, value, &found).unwrap_or_else(|| whole(found))
        }
        _ => whole(found),
    }
}

#[inline]
fn whole(found: Found) -> Response {
    let response = Response::with_body(found.body());
    found.describe(response)
}

/// Whether a request has neither conditions nor a range, as nearly all have.
fn is_plain(request: &Request) -> bool {
    request.headers().all(|(name, _)| match name.as_bytes() {
        [b'i' | b'I', b'f' | b'F', b'-', ..] => false,
        name => !name.eq_ignore_ascii_case(b"range"),
    })
}

/// Whether the object is still the one that `If-Range` means, if there is one.
fn range_counts(request: &Request, found: &Found) -> bool {
    request.header("if-range").is_none_or(|value| {
        let current = found.current();
        let etag = EntityTag::strong(found.version().as_bytes());
        range::if_range(value, etag, current.modified_s)
    })
}
