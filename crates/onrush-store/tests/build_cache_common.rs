//! Opens and uses build caches.

use crate::common::*;
use crate::edge_common::{read, wait_until};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_store::cache::{CacheOptions, CacheStats};
use onrush_store::testing::disk_bytes;
use onrush_store::*;
use std::path::Path;
use std::sync::Arc;

pub(crate) fn options(bytes_max: u64) -> CacheOptions {
    CacheOptions {
        origin: "a test".to_owned(),
        bytes_max,
        descriptors: Descriptors::default(),
        report: Arc::new(|event| println!("the disk: {event:?}")),
    }
}

/// A cache in a folder that an earlier one may still be about to close.
pub(crate) fn opened(dir: &Path, bytes_max: u64) -> BuildCache {
    let mut last = None;
    wait_until("the folder is free", || {
        let pool = BlockingPool::threads(4, 1000);
        match BuildCache::open(dir, pool, options(bytes_max)) {
            Ok(cache) => last = Some(cache),
            Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
        }
        last.is_some()
    });
    last.expect("a cache")
}

/// A cache whose scan is complete.
pub(crate) fn cache(dir: &Path, bytes_max: u64) -> BuildCache {
    let cache = opened(dir, bytes_max);
    wait_until("the scan is complete", || stats(&cache).is_complete);
    cache
}

pub(crate) fn stats(cache: &BuildCache) -> CacheStats {
    cache.metrics().cache
}

pub(crate) async fn stage(cache: &BuildCache, at: &str, size: Option<usize>) -> Box<dyn Upload> {
    let size = size.map(|size| size as u64);
    let staged = cache.stage(&key(at), Condition::None, size).await;
    staged.expect("an upload")
}

pub(crate) async fn upload(
    cache: &BuildCache,
    at: &str,
    body: &[u8],
    is_known: bool,
) -> Result<Committed> {
    let mut upload = stage(cache, at, is_known.then_some(body.len())).await;
    for piece in body.chunks(64 * 1024) {
        upload.write(piece.to_vec()).await?;
    }
    upload.commit().await
}

pub(crate) fn put(cache: &BuildCache, at: &str, body: &[u8]) -> Result<Committed> {
    block_on(upload(cache, at, body, true))
}

pub(crate) fn get(cache: &BuildCache, at: &str) -> Result<Vec<u8>> {
    block_on(async {
        let object = cache.get(&key(at)).await?;
        let size = object.meta().size;
        read(&object, 0..size).await
    })
}

/// No file is being changed, so the disk and the account agree.
pub(crate) fn assert_exact(cache: &BuildCache, dir: &Path) {
    wait_until("the disk has what is accounted for", || {
        disk_bytes(dir) == stats(cache).used_bytes
    });
    assert!(disk_bytes(dir) <= stats(cache).limit_bytes);
}
