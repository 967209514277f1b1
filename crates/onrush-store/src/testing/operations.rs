//! The operations of stores, in the words of the checks.

use crate::error::Result;
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::object::Object;
use crate::store::{Committed, Condition, Store};
use std::future::poll_fn;
use std::ops::Range;

pub(super) fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a valid key")
}

/// Content that differs at each position.
pub(super) fn body(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

pub(super) async fn put_if(
    store: &dyn Store,
    at: &str,
    body: &[u8],
    how: Condition,
) -> Result<Committed> {
    let mut upload = store.stage(&key(at), how, Some(body.len() as u64)).await?;
    for piece in body.chunks(7000) {
        let back = upload.write(piece.to_vec()).await?;
        assert!(back.is_empty(), "an upload returns an empty buffer");
    }
    assert_eq!(upload.written_bytes(), body.len() as u64);
    upload.commit().await
}

pub(super) async fn put(store: &dyn Store, at: &str, body: &[u8]) -> Result<Committed> {
    put_if(store, at, body, Condition::None).await
}

pub(super) async fn get(store: &dyn Store, at: &str) -> Result<Vec<u8>> {
    let object = store.get(&key(at)).await?;
    let size = object.meta().size;
    read_stream(&object, 0..size).await
}

pub(super) async fn delete(store: &dyn Store, at: &str, kind: Kind) -> Result<Meta> {
    store.delete(&key(at), kind, Condition::None).await
}

pub(super) async fn read_stream(object: &Object, range: Range<u64>) -> Result<Vec<u8>> {
    let mut stream = object.stream(range);
    let mut all = Vec::new();
    while let Some(piece) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
        let piece = piece?;
        assert!(!piece.is_empty(), "a stream returns no empty piece");
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Compares the properties of an object with those that the commit returned. A store may not know
/// the exact time of the service then.
pub(super) fn assert_same(found: &Meta, committed: &Meta) {
    let of = |meta: &Meta| (meta.kind, meta.size, meta.version);
    assert_eq!(of(found), of(committed));
}
