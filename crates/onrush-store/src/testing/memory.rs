//! A store in memory that resembles a remote one: no local files, no generations, and folders that
//! exist only while they contain an object.

use crate::error::{Result, StoreError};
use crate::key::{Key, RESERVED};
use crate::meta::{Kind, METADATA_BYTES_MAX, Meta, Version};
use crate::object::{ByteStream, LocalFuture, Object, ReadAt};
use crate::store::{Committed, Condition, Entry, Features, ListHow, Page, Store, Upload, Wanted};
use crate::usage::counted_bytes;
use bytes::Bytes;
use futures_core::Stream;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

/// The size in bytes of a piece of a stream. Small, so that tests see several.
const PIECE_BYTES: u64 = 3000;

/// Objects in memory. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Objects>>);

#[derive(Debug, Default)]
struct Objects {
    by_key: BTreeMap<Vec<u8>, Stored>,
    /// The number of changes. Each version is made from it.
    changes: u64,
    /// See [`MemoryStore::fail_with`].
    failure: Option<StoreError>,
}

#[derive(Clone, Debug)]
struct Stored {
    meta: Meta,
    metadata: Vec<u8>,
    content: Bytes,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Lets every operation fail, as if the service of the store failed. `None` ends that.
    pub fn fail_with(&self, failure: Option<StoreError>) {
        self.lock().failure = failure;
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> Result<MutexGuard<'_, Objects>> {
        let objects = self.lock();
        match objects.failure {
            Some(failure) => Err(failure),
            None => Ok(objects),
        }
    }
}

impl Objects {
    /// The keys beneath the folder `key`.
    fn beneath(&self, key: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Stored)> {
        let prefix = [key, b"/"].concat();
        let from = self.by_key.range(prefix.clone()..);
        from.take_while(move |(key, _)| key.starts_with(&prefix))
    }

    fn is_folder(&self, key: &[u8]) -> bool {
        self.beneath(key).next().is_some()
    }

    fn object(&self, key: &Key) -> Result<&Stored> {
        match self.by_key.get(key.as_bytes()) {
            Some(found) => Ok(found),
            None if self.is_folder(key.as_bytes()) => Err(StoreError::IsDirectory),
            None => Err(StoreError::NotFound),
        }
    }

    fn existing_object(&self, key: &Key) -> Result<Option<Meta>> {
        let mut parent = key.parent();
        while let Some(folder) = parent {
            if self.by_key.contains_key(folder.as_bytes()) {
                return Err(StoreError::NotDirectory);
            }
            parent = folder.parent();
        }
        match self.object(key) {
            Ok(found) => Ok(Some(found.meta)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn meta(&self, key: &Key) -> Result<Meta> {
        match self.object(key) {
            Ok(found) => Ok(found.meta),
            Err(StoreError::IsDirectory) => Ok(folder_meta()),
            Err(error) => Err(error),
        }
    }

    fn put(&mut self, key: &Key, body: Body, condition: &Condition) -> Result<Committed> {
        let current = self.existing_object(key)?;
        condition.check(current.as_ref())?;
        self.changes += 1;
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let version = Version::parse(format!("memory-{}", self.changes).as_bytes());
        let meta = Meta {
            kind: Kind::File,
            size: body.content.len() as u64,
            modified_ns: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            changed_ns: None,
            version: version.ok_or(StoreError::TooLarge)?,
        };
        let stored = Stored {
            meta,
            metadata: body.metadata,
            content: body.content.into(),
        };
        self.by_key.insert(key.as_bytes().to_vec(), stored);
        Ok(Committed {
            created: current.is_none(),
            replaced_bytes: current.map_or(0, |replaced| counted_bytes(replaced.size)),
            meta,
        })
    }

    fn delete(&mut self, key: &Key, kind: Kind, condition: &Condition) -> Result<Meta> {
        let meta = match self.meta(key) {
            Err(StoreError::NotFound) => {
                condition.check(None)?;
                return Err(StoreError::NotFound);
            }
            other => other?,
        };
        match (meta.kind, kind) {
            (Kind::Directory, Kind::File) => return Err(StoreError::IsDirectory),
            (Kind::File, Kind::Directory) => return Err(StoreError::NotFound),
            (Kind::File, Kind::File) | (Kind::Directory, Kind::Directory) => {}
        }
        condition.check(Some(&meta))?;
        if kind == Kind::Directory {
            return Err(StoreError::NotEmpty); // An empty folder does not exist.
        }
        self.by_key.remove(key.as_bytes());
        Ok(meta)
    }

    fn list(&self, folder: Option<&Key>, how: &ListHow) -> Result<Page> {
        let prefix = folder.map_or(Vec::new(), |folder| [folder.as_bytes(), b"/"].concat());
        if let Some(folder) = folder
            && !self.is_folder(folder.as_bytes())
        {
            let is_object = self.by_key.contains_key(folder.as_bytes());
            return Err(match is_object {
                true => StoreError::NotDirectory,
                false => StoreError::NotFound,
            });
        }
        let mut entries: BTreeMap<&[u8], Meta> = BTreeMap::new();
        for (key, stored) in self
            .by_key
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix))
        {
            let rest = &key[prefix.len()..];
            match rest.iter().position(|&byte| byte == b'/') {
                Some(at) => entries.insert(&rest[..at], folder_meta()),
                None => entries.insert(rest, stored.meta),
            };
        }
        let after = how.after.as_deref();
        entries.retain(|name, _| {
            let is_shown = how.hidden || name[0] != b'.';
            let is_own = folder.is_none() && name.eq_ignore_ascii_case(RESERVED);
            after.is_none_or(|after| *name > after) && is_shown && !is_own
        });
        let limit = how.limit.clamp(1, ListHow::LIMIT_MAX);
        let has_more = entries.len() > limit;
        let entries = entries.into_iter().take(limit).map(|(name, meta)| Entry {
            name: name.to_vec(),
            kind: meta.kind,
            size: meta.size,
            modified_ns: meta.modified_ns,
            version: meta.version,
        });
        let entries: Vec<Entry> = entries.collect();
        let last = entries.last().map(|entry| entry.name.clone());
        Ok(Page {
            next: last.filter(|_| has_more),
            entries,
        })
    }
}

fn folder_meta() -> Meta {
    Meta {
        kind: Kind::Directory,
        size: 0,
        modified_ns: 0,
        changed_ns: None,
        version: Version::from_numbers([0; 3]),
    }
}

impl Store for MemoryStore {
    fn open<'a>(&'a self, key: &'a Key, _: Wanted) -> LocalFuture<'a, Result<Object>> {
        Box::pin(async move {
            let stored = self.objects()?.object(key)?.clone();
            let reader = Arc::new(Reader(stored.content));
            Ok(Object::from_reader(stored.meta, stored.metadata, reader))
        })
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move { self.objects()?.meta(key) })
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        Box::pin(async move { self.objects()?.existing_object(key) })
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        _size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            Ok(Box::new(MemoryUpload {
                store: self.clone(),
                key: key.clone(),
                condition,
                body: Body::default(),
            }) as Box<dyn Upload>)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move { self.objects()?.delete(key, kind, &condition) })
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        Box::pin(async move { self.objects()?.list(folder, &how) })
    }

    fn features(&self) -> Features {
        Features {
            metadata_bytes_max: METADATA_BYTES_MAX,
            inline_writes: true,
            ..Features::default()
        }
    }
}

/// What an upload becomes.
#[derive(Default)]
struct Body {
    content: Vec<u8>,
    metadata: Vec<u8>,
}

struct MemoryUpload {
    store: MemoryStore,
    key: Key,
    condition: Condition,
    body: Body,
}

impl Upload for MemoryUpload {
    fn write(&mut self, mut buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            self.body.content.append(&mut buf);
            Ok(buf)
        })
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        if metadata.len() > METADATA_BYTES_MAX {
            return Err(StoreError::TooLarge);
        }
        self.body.metadata = metadata;
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.body.content.len() as u64
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        Box::pin(async move {
            let mut objects = self.store.objects()?;
            objects.put(&self.key, self.body, &self.condition)
        })
    }
}

struct Reader(Bytes);

impl ReadAt for Reader {
    fn read(
        &self,
        offset: u64,
        len_max: usize,
        mut buf: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            let from = (offset.min(self.0.len() as u64)) as usize;
            let room = len_max.min(buf.capacity() - buf.len());
            let end = from + room.min(self.0.len() - from);
            buf.extend_from_slice(&self.0[from..end]);
            Ok(buf)
        })
    }

    fn stream(&self, range: Range<u64>) -> ByteStream {
        let content = self.0.clone();
        Box::pin(Pieces { content, range })
    }
}

struct Pieces {
    content: Bytes,
    range: Range<u64>,
}

impl Stream for Pieces {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.range.is_empty() {
            return Poll::Ready(None);
        }
        let from = self.range.start;
        let end = self.range.end.min(from + PIECE_BYTES);
        self.range.start = end;
        let piece = self.content.slice(from as usize..end as usize);
        Poll::Ready(Some(Ok(piece)))
    }
}
