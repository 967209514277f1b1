//! Where the objects are: a folder or a bucket, the caches in front of them, and quotas.

pub(crate) mod build_cache;
mod cache_metrics;
pub(crate) mod edge;
pub(crate) mod quotas;
pub(crate) mod storage;
