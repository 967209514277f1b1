//! Shared by the tests of the edge: a store that counts requests and can be held, and short forms.

use crate::common::{block_on, key};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::fs::sim::SimFs;
use onrush_store::cache::{CacheOptions, CacheStats, DiskEvent};
use onrush_store::testing::MemoryStore;
use onrush_store::*;
use std::future::poll_fn;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The size of blocks in the tests.
pub(crate) const BLOCK: u64 = 256 * 1024;
/// The maximum time for something that takes milliseconds on an idle machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A store in memory that counts what it is asked for.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) store: MemoryStore,
    /// The ranges of the objects that were opened.
    pub(crate) opened: Mutex<Vec<Wanted>>,
    pub(crate) asked: AtomicUsize,
    /// Whether it does not respond to the question for a version.
    pub(crate) hangs: AtomicBool,
    /// Whether all versions are the same, as those of S3 are if the content is.
    pub(crate) same_versions: AtomicBool,
    /// Whether times are in whole seconds.
    pub(crate) whole_seconds: AtomicBool,
    /// Whether it says that versions are made from the content.
    pub(crate) versions_by_content: AtomicBool,
    pub(crate) transferred: Arc<AtomicUsize>,
    /// While it is held, no stream has a byte after the first `n`.
    pub(crate) held: Arc<Held>,
    /// While it is held, responses are on their way: what they say is what was when the store was
    /// asked.
    pub(crate) responses: Held,
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    after: Mutex<Option<usize>>,
    wakers: Mutex<Vec<std::task::Waker>>,
    changed: Condvar,
}

impl Held {
    /// Waits while it is held.
    async fn pass(&self) {
        poll_fn(|cx| {
            let after = self.after.lock().unwrap();
            if after.is_none() {
                return Poll::Ready(());
            }
            self.wakers.lock().unwrap().push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    pub(crate) fn after(&self, bytes: Option<usize>) {
        *self.after.lock().unwrap() = bytes;
        self.changed.notify_all();
        for waker in self.wakers.lock().unwrap().drain(..) {
            waker.wake();
        }
    }
}

impl Counted {
    pub(crate) fn new() -> Arc<Counted> {
        Arc::default()
    }

    pub(crate) fn opens(&self) -> Vec<Wanted> {
        std::mem::take(&mut self.opened.lock().unwrap())
    }

    pub(crate) fn metas(&self) -> usize {
        self.asked.swap(0, SeqCst)
    }

    /// Whether no object of this store is open: all fetches have ended.
    pub(crate) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.transferred) == 1
    }

    pub(crate) fn transferred(&self) -> usize {
        self.transferred.load(SeqCst)
    }

    pub(crate) fn put(&self, at: &str, content: &[u8]) {
        put(&self.store, at, content);
    }

    fn shown(&self, meta: Meta) -> Meta {
        let mut shown = meta;
        if self.same_versions.load(SeqCst) {
            shown.version = Version::parse(b"same").unwrap();
        }
        if self.whole_seconds.load(SeqCst) {
            shown.modified_ns -= meta.modified_ns % 1_000_000_000;
        }
        shown
    }
}

pub(crate) fn put(store: &dyn Store, at: &str, content: &[u8]) {
    put_with(store, at, content, at);
}

pub(crate) fn put_with(store: &dyn Store, at: &str, content: &[u8], metadata: &str) {
    block_on(async {
        let mut upload = store.stage(&key(at), Condition::None, None).await.unwrap();
        upload.set_metadata(metadata.as_bytes().to_vec()).unwrap();
        upload.write(content.to_vec()).await.unwrap();
        upload.commit().await.unwrap();
    });
}

struct HeldReader {
    object: Object,
    held: Arc<Held>,
    transferred: Arc<AtomicUsize>,
}

impl ReadAt for HeldReader {
    fn read(&self, at: u64, len: usize, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(self.object.read(at, len, buf))
    }

    fn stream(&self, range: Range<u64>) -> ByteStream {
        Box::pin(HeldStream {
            stream: self.object.stream(range),
            held: self.held.clone(),
            transferred: self.transferred.clone(),
            own: 0,
        })
    }
}

struct HeldStream {
    stream: ByteStream,
    held: Arc<Held>,
    transferred: Arc<AtomicUsize>,
    own: usize,
}

impl futures_core::Stream for HeldStream {
    type Item = Result<bytes::Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let after = *self.held.after.lock().unwrap();
        if after.is_some_and(|after| self.own >= after) {
            self.held.wakers.lock().unwrap().push(cx.waker().clone());
            return Poll::Pending;
        }
        let polled = self.stream.as_mut().poll_next(cx);
        if let Poll::Ready(Some(Ok(piece))) = &polled {
            self.own += piece.len();
            self.transferred.fetch_add(piece.len(), SeqCst);
        }
        polled
    }
}

impl Store for Counted {
    fn open<'a>(&'a self, key: &'a Key, wanted: Wanted) -> LocalFuture<'a, Result<Object>> {
        Box::pin(async move {
            self.opened.lock().unwrap().push(wanted.clone());
            let object = self.store.open(key, wanted).await;
            self.responses.pass().await;
            let object = object?;
            let (meta, metadata) = (self.shown(*object.meta()), object.metadata().await?);
            let reader = HeldReader {
                object,
                held: self.held.clone(),
                transferred: self.transferred.clone(),
            };
            Ok(Object::from_reader(meta, metadata, Arc::new(reader)))
        })
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        self.asked.fetch_add(1, SeqCst);
        match self.hangs.load(SeqCst) {
            true => Box::pin(std::future::pending()),
            false => Box::pin(async {
                let meta = self.store.meta(key).await;
                self.responses.pass().await;
                Ok(self.shown(meta?))
            }),
        }
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        self.store.existing_object(key)
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        self.store.stage(key, condition, size_bytes)
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        self.store.delete(key, kind, condition)
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        self.store.list(folder, how)
    }

    fn features(&self) -> Features {
        let mut features = self.store.features();
        features.versions_by_content |= self.versions_by_content.load(SeqCst);
        features
    }
}

pub(crate) fn options(bytes_max: u64) -> EdgeOptions {
    EdgeOptions {
        cache: CacheOptions {
            origin: "the store of a test".to_owned(),
            bytes_max,
            descriptors: Descriptors::default(),
            report: Arc::new(|event| println!("the disk: {event:?}")),
        },
        fresh: Duration::from_secs(3600),
        stale: Duration::from_secs(3600),
        block_bytes: BLOCK,
    }
}

/// The events of a disk: error numbers of failures, 0 when it works again, -1 for a new folder.
pub(crate) type Events = Arc<Mutex<Vec<i32>>>;

/// Keeps the events of the disk.
pub(crate) fn watch_disk(options: &mut EdgeOptions) -> Events {
    let events = Events::default();
    let all = events.clone();
    options.cache.report = Arc::new(move |event| {
        let event = match event {
            DiskEvent::Fails(cause) => cause.errno().expect("a system call"),
            DiskEvent::Works => 0,
            DiskEvent::IsCreatedAgain => -1,
            DiskEvent::IsScanned(_) => return,
        };
        all.lock().unwrap().push(event);
    });
    events
}

/// An edge on a simulated disk whose folder an earlier one may still be about to close.
pub(crate) fn on_sim(store: &Arc<Counted>, disk: &SimFs, options: EdgeOptions) -> EdgeStore {
    let pool = BlockingPool::threads(4, 1000);
    let mut edge = None;
    wait_until("the folder is free", || {
        let root = disk.root().expect("the power is on");
        match EdgeStore::on(store.clone(), root, pool.clone(), options.clone()) {
            Ok(opened) => edge = Some(opened),
            Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
        }
        edge.is_some()
    });
    edge.expect("an edge")
}

/// An edge whose first scan is complete.
pub(crate) fn edge(store: &Arc<Counted>, dir: &Path, options: EdgeOptions) -> EdgeStore {
    let edge = opened(store, dir, options);
    wait_until("the scan is complete", || stats(&edge).is_complete);
    edge
}

/// An edge in a folder that an earlier one may still be about to close.
pub(crate) fn opened(store: &Arc<Counted>, dir: &Path, options: EdgeOptions) -> EdgeStore {
    let mut last = None;
    wait_until("the folder is free", || {
        let pool = BlockingPool::threads(4, 1000);
        match EdgeStore::open(store.clone(), dir, pool, options.clone()) {
            Ok(edge) => last = Some(edge),
            Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
        }
        last.is_some()
    });
    last.expect("an edge")
}

pub(crate) fn stats(edge: &EdgeStore) -> CacheStats {
    edge.metrics().cache()
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) async fn read(object: &Object, range: Range<u64>) -> Result<Vec<u8>> {
    let mut stream = object.stream(range);
    let mut all = Vec::new();
    while let Some(piece) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// The content of an object and how it was found. Its metadata is its name.
pub(crate) fn get(store: &dyn Store, at: &str) -> Result<(Vec<u8>, CacheUse)> {
    block_on(async {
        let object = store.get(&key(at)).await?;
        assert_eq!(object.metadata().await?, at.as_bytes());
        let content = read(&object, 0..u64::MAX).await?;
        assert_eq!(content.len() as u64, object.meta().size);
        Ok((content, object.cached().expect("an edge").how))
    })
}

pub(crate) const MISS: CacheUse = CacheUse::Miss {
    is_stored: true,
    is_collapsed: false,
};

/// The files of a cache.
pub(crate) fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() && entry.file_name() != "new" {
            let files = std::fs::read_dir(entry.path()).unwrap().flatten();
            all.extend(files.map(|file| file.path()));
        }
    }
    all
}

/// Opens an object without waiting. The kernel may refuse that while other files are renamed.
pub(crate) fn at_once(edge: &EdgeStore, at: &str) -> Object {
    let mut object = None;
    wait_until("it can be opened at once", || {
        get(edge, at).expect("an object"); // It is stale for a second only.
        object = edge.try_get(&key(at));
        object.is_some()
    });
    object.expect("it was opened").expect("an object")
}
