//! Objects as plain files, with atomic and durable replacement.
//!
//! The server uses the trait [`Store`]: a ranged get, a staged conditional put, a delete, and an
//! ordered list. The trait contains no files, descriptors or paths, so stores on other machines can
//! implement it. [`Folder`] is the store on a disk. Every object is an ordinary file beneath one
//! directory, so other tools can read it.
//!
//! ```
//! # use onrush_store::*;
//! # use onrush_rt::{blocking::BlockingPool, fs::sim::SimFs};
//! # fn block_on<F: Future>(f: F) -> F::Output {
//! #     let mut f = std::pin::pin!(f);
//! #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
//! #     loop { if let std::task::Poll::Ready(out) = f.as_mut().poll(&mut cx) { return out } }
//! # }
//! # let root = SimFs::new(1).root().unwrap();
//! let folder = Folder::on(root, BlockingPool::inline(), FolderOptions::default())?;
//! let key = Key::parse(b"notes/today.txt")?;
//! block_on(async {
//!     let mut upload = folder.stage(&key, Condition::Absent, Some(5)).await?;
//!     upload.write(b"hello".to_vec()).await?;
//!     let done = upload.commit().await?; // durable on the disk, or an error
//!     assert!(done.created && done.meta.size == 5);
//!     let object = folder.get(&key).await?;
//!     assert_eq!(object.read(1, 3, Vec::with_capacity(64)).await?, b"ell");
//!     Ok::<(), StoreError>(())
//! })?;
//! # Ok::<(), StoreError>(())
//! ```
//!
//! Layers inside this crate, lowest first: `error` · `sync` (tasks that wait for each other) ·
//! `key` · `shown` (which names are) · `meta` ·
//! `checksum` · `attributes` · `local` · `object` · `changes` · `listing` · `store` · `stamps` ·
//! `usage` (what quotas count) · `folder` · `scrub` · `quota` · [`cache`] · `record` (the
//! form of cached files) · `edge`, `build_cache` · `testing`.
//! This crate does not contain HTTP: no headers, no statuses, no percent-encoding.

mod attributes;
mod build_cache;
pub mod cache;
mod changes;
mod checksum;
mod edge;
mod error;
mod folder;
#[cfg(test)]
mod for_tests;
mod key;
mod listing;
mod local;
mod meta;
mod object;
mod quota;
mod record;
mod scrub;
mod shown;
mod stamps;
mod store;
pub mod sync;
#[cfg(feature = "testing")]
pub mod testing;
mod usage;

pub use build_cache::{BuildCache, BuildCacheMetrics};
pub use changes::{ChangedName, Changes, FolderChanges};
pub use edge::{EdgeMetrics, EdgeOptions, EdgeStore};
pub use error::{Cause, Result, StoreError};
pub use folder::{Counted, Durability, Folder, FolderOptions, PreparedOptions, folds_names};
pub use key::Key;
pub use listing::{Cursor, CursorHow, DetailedEntry, Entry, ListHow, NamesMemory, Page};
pub use local::LocalFile;
pub use meta::{Kind, METADATA_BYTES_MAX, Meta, PROPERTIES_BYTES_MAX, Version};
pub use object::{ByteStream, CacheUse, Cached, FilePart, LocalFuture, Object, ReadAt};
pub use quota::{Progress, QuotaStore, RecordedUpload};
pub use scrub::{EachFile, Finding, Scrub};
pub use shown::{NamePattern, ShownNames};
pub use store::{
    Committed, Condition, Features, Overlap, PartialUpload, Relocation, Space, StagedCopy,
};
pub use store::{ResumableUploads, Store, Upload, Wanted};
pub use usage::{COUNTED_BYTES_MIN, HandedOver, Quota};
