//! What clients receive of the XML of another one, for fuzzing.

use super::lock::LockInfo;
use super::locks::{Holder, Lock, Token};
use super::propfind::rendered;
use super::proppatch;
use crate::files::Files;
use crate::shares;
use onrush_rt::blocking::block_on;
use onrush_store::Key;

/// Takes `body` for that of a PROPPATCH, of a LOCK and of a PROPFIND of the same folder. Returns
/// the documents that result, which is none if all refuse it: the responses to a PROPFIND of all
/// properties, of all names and of those that `body` names, and the one to the PROPPATCH. Nothing
/// remains in `files`.
///
/// # Panics
/// If the system has no random numbers, or two threads share `files`.
pub fn received(files: &Files, body: &[u8]) -> Vec<String> {
    let inner = &files.0;
    let key = Key::parse(b"a").expect("a key");
    let mut documents = Vec::new();
    let mut stored = None;
    if let Ok(instructions) = proppatch::parse(body) {
        documents.push(proppatch::render("/a/", &instructions, 200));
        if !proppatch::has_protected(&instructions) {
            stored = Some(proppatch::changed(b"", &instructions));
        }
    }
    let token = Token::random().expect("random numbers");
    let info = LockInfo::parse(body).ok();
    let is_lock = info.is_some();
    if let Some(info) = info {
        let lock = Lock {
            token,
            scope: info.scope,
            is_deep: false,
            owner: info.owner.into(),
            user: None,
            timeout_s: 60,
            expires_ms: u64::MAX,
        };
        let client = shares::Holder::address(None);
        let granted = inner.locks.grant(key.as_bytes(), lock, client, 0);
        assert!(granted.is_ok(), "there is no other lock");
    }
    let stored_or_none = stored.clone().unwrap_or_default();
    let get = |asked: &[u8]| block_on(rendered(inner, &key, asked, stored_or_none.clone()));
    if stored.is_some() || is_lock {
        const NAMES: &[u8] = b"<propfind xmlns='DAV:'><propname/></propfind>";
        documents.splice(..0, [get(b""), get(NAMES)].into_iter().flatten());
    }
    documents.extend(get(body).filter(|_| !body.is_empty()));
    let holder = Holder {
        user: None,
        tokens: &[token],
    };
    inner.locks.release(key.as_bytes(), holder, |_, _| false, 0);
    documents
}
