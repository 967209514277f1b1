//! `?watch`: the changes of a folder as Server-Sent Events (the HTML standard, §9.2).
//!
//! The store reports names. After a short pause, which makes one event of many changes of a name,
//! each name is looked up, so that an event says what a listing would say. What a listing would not
//! show is left out, unless it is gone: then only its name is known (`removed`). If there are too
//! many changes, one event `list` stands for all.
//!
//! A client that connects again may have missed changes, so its first event is `list`. That is also
//! why a stream may end at any time: when the server drains, when users and their rights change
//! ([`Files::end_watches`](crate::files::Files::end_watches)), and after half an hour, because a
//! signed URL may have expired.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::listing::json;
use crate::files::listing::list::Listings;
use crate::files::path::shown::is_listed;
use crate::files::path::{self, Split};
use crate::shares::{Holder, Share};
use futures_core::Stream;
use onrush::{Body, Bytes, Draining, Request, Response, WorkerHandle};
use onrush_store::{ChangedName, Changes, Entry, FolderChanges, Key, StoreError};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The time between two events of the same name. A program that writes a file in several steps
/// causes few events.
const PAUSE: Duration = Duration::from_millis(200);

/// The maximum number of names that are looked up after a pause. For more, a listing is cheaper.
const NAMES_MAX: usize = 64;

/// A comment keeps the connection open through proxies. It is also how the server notices that a
/// client has gone: the end of its side alone does not say so (RFC 9112 §9.6), but sending fails.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// After this time the client has to connect again.
const LIFETIME_MS: u64 = 30 * 60 * 1000;

/// When a client connects again, in milliseconds. The `id` lets it say that it was connected.
const FIRST: &str = "retry: 2000\nid: 0\n\n";

/// A folder that a client watches.
struct Watch {
    listings: Arc<Listings>,
    folder: Option<Key>,
    /// The encoded path of the folder, with a slash at both ends.
    href: String,
    worker: WorkerHandle,
    draining: Draining,
    changes: Box<dyn FolderChanges>,
    end_ms: u64,
    /// That of the beginning.
    epoch: u64,
    /// The identifier of the next event.
    id: u64,
    /// The last event was made.
    has_ended: bool,
    /// The place among those who watch.
    _place: Share,
}

/// What a stream waits for.
enum Happened {
    Changed,
    Nothing,
    Drain,
}

impl Listings {
    /// The response to GET or HEAD of a folder with `?watch`. The right to list the folder has been
    /// checked.
    pub(in crate::files) async fn watch(
        self: &Arc<Listings>,
        request: &Request,
        split: Split<'_>,
        folder: Option<Key>,
    ) -> Result<Response, HttpError> {
        let place = self.objects.shares.watchers.take(Holder::of(request), 1);
        let place = place.map_err(|full| {
            HttpError::full(
                full,
                "you watch too many folders at a time; close some of them",
                "too many clients watch folders; try again later",
            )
        })?;
        let (draining, epoch) = (request.draining(), self.watch_epoch.load(Relaxed));
        let changes = match self.objects.store.watch(folder.as_ref()).await {
            Ok(changes) => changes,
            Err(StoreError::Unsupported) => {
                let detail = "only folders on a disk of the server can be watched";
                return Err(HttpError::new(501, detail));
            }
            Err(error) => {
                return Err(self
                    .objects
                    .store_failure(error, Operation::Read, folder.as_ref()));
            }
        };
        let mut href = path::href(split.mount, folder.as_ref().map_or(b"", Key::as_bytes));
        if folder.is_some() {
            href.push('/');
        }
        let worker = request.worker().clone();
        let mut watch = Watch {
            listings: self.clone(),
            folder,
            href,
            draining,
            changes,
            end_ms: worker.now_ms() + LIFETIME_MS,
            worker,
            epoch,
            id: 1,
            has_ended: false,
            _place: place,
        };
        let mut first = FIRST.to_owned();
        if request.header("last-event-id").is_some() {
            first.push_str(&watch.event("list", "{}"));
        }
        let step: Step = Box::pin(async move { Some((first, watch)) });
        Ok(Response::with_body(Body::stream(Events { step }, None))
            .content_type("text/event-stream")
            .with_header("Cache-Control", "no-store")
            // nginx would keep events until its buffer is full.
            .with_header("X-Accel-Buffering", "no")
            .with_header("X-Content-Type-Options", "nosniff"))
    }
}

impl Watch {
    /// The next text to send; `None` at the end.
    async fn next(mut self) -> Option<(String, Watch)> {
        while !self.has_ended && self.worker.now_ms() < self.end_ms {
            let happened = self.wait().await;
            let names = match happened {
                Happened::Drain => return None,
                Happened::Nothing => None,
                Happened::Changed => {
                    self.worker.sleep(PAUSE).await;
                    Some(self.changes.take())
                }
            };
            // The client connects again, and its rights are checked.
            if self.epoch != self.listings.watch_epoch.load(Relaxed) {
                return None;
            }
            // Whatever happens in a folder that was moved away is not for this client.
            let is_current = self.changes.is_current().await.ok()?;
            let text = match names {
                _ if !is_current => self.gone(),
                Some(Changes::Ended) => self.gone(),
                None => ":\n\n".to_owned(),
                Some(Changes::Names(names)) if names.len() <= NAMES_MAX => self.events(names).await,
                Some(Changes::Missed | Changes::Names(_)) => self.event("list", "{}"),
            };
            if !text.is_empty() {
                return Some((text, self));
            }
        }
        None
    }

    async fn wait(&mut self) -> Happened {
        let mut changed = self.changes.changed();
        let mut heartbeat = pin!(self.worker.sleep(HEARTBEAT));
        let draining = &mut self.draining;
        poll_fn(|cx| {
            if Pin::new(&mut *draining).poll(cx).is_ready() {
                return Poll::Ready(Happened::Drain);
            }
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Happened::Changed);
            }
            heartbeat.as_mut().poll(cx).map(|()| Happened::Nothing)
        })
        .await
    }

    /// The events of these names.
    async fn events(&mut self, names: Vec<ChangedName>) -> String {
        let mut events = String::new();
        for changed in names {
            let Ok(key) = Key::of_entry(self.folder.as_ref(), &changed.name) else {
                continue;
            };
            if !is_listed(
                &self.listings.objects.options,
                self.folder.as_ref(),
                &changed.name,
            ) {
                continue;
            }
            let mut data = String::new();
            let kind = match self.listings.objects.store.meta(&key).await {
                Ok(meta) => {
                    let entry = Entry {
                        name: changed.name,
                        kind: meta.kind,
                        size: meta.size,
                        modified_ns: meta.modified_ns,
                        version: meta.version,
                    };
                    json::object(&mut data, &self.href, &entry);
                    match changed.appeared && !changed.left {
                        true => "created",
                        false => "changed",
                    }
                }
                Err(StoreError::NotFound) if changed.left => {
                    json::name(&mut data, &self.href, &changed.name);
                    data.push_str("\"}");
                    "removed"
                }
                // It is not an object, or its removal is reported next.
                Err(StoreError::NotFound) => continue,
                Err(_) => return self.event("list", "{}"), // It is not known what it is.
            };
            events.push_str(&self.event(kind, &data));
        }
        events
    }

    fn event(&mut self, kind: &str, data: &str) -> String {
        let id = self.id;
        self.id += 1;
        format!("id: {id}\nevent: {kind}\ndata: {data}\n\n")
    }

    /// The last event: the folder was deleted or moved.
    fn gone(&mut self) -> String {
        self.has_ended = true;
        self.event("gone", "{}")
    }
}

type Step = Pin<Box<dyn Future<Output = Option<(String, Watch)>>>>;

/// The events of a watch. Dropping it ends the watch at once.
struct Events {
    /// Resolves to the next text and to the watch, which makes the step after it.
    step: Step,
}

impl Stream for Events {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.step.as_mut().poll(cx));
        Poll::Ready(next.map(|(text, watch)| {
            self.step = Box::pin(watch.next());
            Ok(text.into())
        }))
    }
}
