//! What the tests share besides the services of `testing_s3`.

use bytes::Bytes;
use onrush_remote::{Options, RemoteStore};
pub(crate) use onrush_store::testing::block_on;
use onrush_store::{Object, Result};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stores on a service that runs elsewhere, with a prefix of this call: `ONRUSH_TEST_S3` is its
/// address, key and secret, separated by spaces, and the bucket `conformance` exists. `None` if the
/// variable is not set; then a test does nothing.
pub(crate) fn real() -> Option<impl Fn() -> RemoteStore> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    std::env::var_os("ONRUSH_TEST_S3")?;
    let number = CALLS.fetch_add(1, Relaxed);
    let prefix = format!("{}-{number}", std::process::id());
    Some(move || real_at(&prefix).expect("the variable is set"))
}

/// A store on that service with this prefix.
pub(crate) fn real_at(prefix: &str) -> Option<RemoteStore> {
    let service = std::env::var("ONRUSH_TEST_S3").ok()?;
    let [endpoint, key, secret] = service.split(' ').collect::<Vec<_>>()[..] else {
        panic!("ONRUSH_TEST_S3 is not an address, a key and a secret");
    };
    let location = format!("s3://conformance/{prefix}").parse();
    let location = location.expect("a location");
    let store = RemoteStore::at(endpoint, (key, secret), location, Options::default());
    Some(store.expect("a store"))
}

/// All bytes of an object.
pub(crate) async fn read_all(object: &Object) -> Result<Vec<u8>> {
    read(object, 0..object.meta().size).await
}

/// A range of an object.
pub(crate) async fn read(object: &Object, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
    let mut stream = object.stream(range);
    let mut all = Vec::new();
    while let Some(piece) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        let piece: Bytes = piece?;
        all.extend_from_slice(&piece);
    }
    Ok(all)
}
