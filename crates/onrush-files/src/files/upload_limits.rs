//! The limits of objects and of unfinished uploads.

use crate::files::http::http_error::HttpError;
use crate::files::http::types::intern;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The limits of objects and of unfinished uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadLimits {
    /// The maximum size of an object, in bytes. A larger one gets 413.
    pub object_bytes_max: u64,
    /// The time after the last byte until an upload is removed, in seconds.
    pub age_max_s: u64,
    /// The maximum number of unfinished uploads. A further one gets 503. With 0, uploads cannot be
    /// continued.
    pub count_max: usize,
    /// The maximum size of all unfinished uploads together, in bytes. What has arrived counts.
    /// Bytes beyond it get 507, and so does an announced length for which there is no room at the
    /// time.
    pub bytes_max: u64,
}

impl Default for UploadLimits {
    /// A day, and ten thousand uploads of any size.
    fn default() -> UploadLimits {
        UploadLimits {
            object_bytes_max: u64::MAX,
            age_max_s: 24 * 3600,
            count_max: 10_000,
            bytes_max: u64::MAX,
        }
    }
}

/// Limits that can change. Each is read by itself: no two of them depend on each other.
#[derive(Debug)]
pub(in crate::files) struct SharedLimits {
    object_bytes_max: AtomicU64,
    age_max_s: AtomicU64,
    count_max: AtomicUsize,
    bytes_max: AtomicU64,
}

impl SharedLimits {
    pub(in crate::files) fn new(limits: UploadLimits) -> SharedLimits {
        SharedLimits {
            object_bytes_max: AtomicU64::new(limits.object_bytes_max),
            age_max_s: AtomicU64::new(limits.age_max_s),
            count_max: AtomicUsize::new(limits.count_max),
            bytes_max: AtomicU64::new(limits.bytes_max),
        }
    }

    pub(in crate::files) fn get(&self) -> UploadLimits {
        UploadLimits {
            object_bytes_max: self.object_bytes_max.load(Relaxed),
            age_max_s: self.age_max_s.load(Relaxed),
            count_max: self.count_max.load(Relaxed),
            bytes_max: self.bytes_max.load(Relaxed),
        }
    }

    pub(in crate::files) fn set(&self, limits: UploadLimits) {
        (self.object_bytes_max).store(limits.object_bytes_max, Relaxed);
        self.age_max_s.store(limits.age_max_s, Relaxed);
        self.count_max.store(limits.count_max, Relaxed);
        self.bytes_max.store(limits.bytes_max, Relaxed);
    }
}

impl UploadLimits {
    /// The response to an object that is too large.
    pub(in crate::files) fn too_large(&self) -> HttpError {
        let text = format!("the object is larger than {} bytes", self.object_bytes_max);
        HttpError::new(413, intern(&text)) // There are only as many texts as limits.
    }
}
