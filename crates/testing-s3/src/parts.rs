//! Multipart uploads of the server, and where a change fails or stops.

use super::object::{Fields, Stored};
use bytes::Bytes;
use md5::{Digest, Md5};
use s3s::dto::{CompletedMultipartUpload, ETag, ETagCondition};
use s3s::{S3Result, s3_error};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// The smallest part that is not the last one.
const PART_BYTES_MIN: usize = 5 << 20;

/// A multipart upload.
#[derive(Debug)]
pub struct Parts {
    /// The key of the object.
    pub key: String,
    /// When it was begun.
    pub begun: SystemTime,
    /// The fields of the object.
    pub fields: Fields,
    /// The parts so far, by number.
    pub parts: BTreeMap<i32, Bytes>,
}

impl Parts {
    /// The bytes of the parts that a request names. Ceph refuses it if there are others.
    pub(crate) fn content(
        &self,
        named: Option<CompletedMultipartUpload>,
        is_ceph: bool,
    ) -> S3Result<Vec<u8>> {
        let named = named.and_then(|named| named.parts).unwrap_or_default();
        if is_ceph && named.len() != self.parts.len() {
            return Err(s3_error!(InvalidPart));
        }
        let (mut content, mut before) = (Vec::new(), 0);
        for (index, part) in named.iter().enumerate() {
            let number = part.part_number.unwrap_or(0);
            let stored = self.parts.get(&number);
            let stored = stored.ok_or_else(|| s3_error!(InvalidPart))?;
            let is_same = part.e_tag.as_ref().map(ETag::value) == Some(&hash(stored)[..]);
            if !is_same || number <= before {
                return Err(s3_error!(InvalidPart));
            }
            if index + 1 < named.len() && stored.len() < PART_BYTES_MIN {
                return Err(s3_error!(EntityTooSmall));
            }
            before = number;
            content.extend_from_slice(stored);
        }
        Ok(content)
    }
}

/// Stops the server at a step: before a change is made, or after it and before the response.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// The steps until the one that hangs; 0 if none does.
    pub left: Arc<AtomicUsize>,
    /// Whether a step hangs, or has hung.
    pub is_reached: Arc<AtomicBool>,
}

impl Steps {
    /// The next step hangs after `number` others.
    pub fn hang_after(&self, number: usize) {
        self.is_reached.store(false, Ordering::SeqCst);
        self.left.store(number + 1, Ordering::SeqCst);
    }

    /// A step.
    pub(crate) async fn pass(&self) {
        let count_down = |left: usize| left.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if self.left.fetch_update(set, get, count_down) == Ok(1) {
            self.is_reached.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
    }
}

/// Requests that fail or wait because of their key.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// GET, PUT and the completion of keys that begin so get SlowDown.
    pub throttled: Arc<Mutex<Option<String>>>,
    /// The number of GETs of states that wait for [`Faults::is_released`].
    pub held: Arc<AtomicUsize>,
    /// Whether they continue.
    pub is_released: Arc<AtomicBool>,
}

impl Faults {
    /// Sets [`Faults::throttled`].
    ///
    /// # Panics
    /// If another thread has panicked here.
    pub fn throttle(&self, beginning: Option<&str>) {
        *self.throttled.lock().expect("no panic") = beginning.map(str::to_owned);
    }

    pub(crate) fn check(&self, key: &str) -> S3Result<()> {
        let beginning = self.throttled.lock().expect("no panic");
        match beginning
            .as_ref()
            .is_some_and(|found| key.starts_with(found))
        {
            true => Err(s3_error!(SlowDown)),
            false => Ok(()),
        }
    }

    /// A GET.
    pub(crate) async fn pass(&self, key: &str) -> S3Result<()> {
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        let count_down = |left: usize| left.checked_sub(1);
        if key.contains("/kept/") && self.held.fetch_update(set, get, count_down).is_ok() {
            while !self.is_released.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        self.check(key)
    }
}

/// Whether a condition holds.
pub(crate) fn holds(condition: Option<&ETagCondition>, current: Option<&Stored>) -> bool {
    match (condition, current) {
        (None, _) | (Some(ETagCondition::Any), Some(_)) => true,
        (Some(ETagCondition::ETag(tag)), Some(current)) => tag.value() == current.tag,
        (Some(_), None) => false,
    }
}

/// The tag of an object or a part.
pub(crate) fn hash(content: &[u8]) -> String {
    let mut text = String::new();
    for byte in Md5::digest(content) {
        write!(text, "{byte:02x}").expect("memory");
    }
    text
}

/// Fails if there are failures left.
pub(crate) fn fail(left: &AtomicUsize) -> S3Result<()> {
    match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
        Ok(_) => Err(s3_error!(InternalError)),
        Err(_) => Ok(()),
    }
}
