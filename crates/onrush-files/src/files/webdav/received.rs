//! What clients receive of the XML of another one, for fuzzing.

use super::WebDav;
use super::lock::LockInfo;
use super::propfind::rendered;
use super::proppatch;
use crate::files::locks::table::{Holder, Lock, Token};
use crate::shares;
use onrush_rt::blocking::block_on;
use onrush_store::Key;
use std::sync::Arc;

/// See `crate::files::received`.
pub(in crate::files) fn received(webdav: &Arc<WebDav>, body: &[u8]) -> Vec<String> {
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
        let granted = webdav.locking.locks.grant(key.as_bytes(), lock, client, 0);
        assert!(granted.is_ok(), "there is no other lock");
    }
    let stored_or_none = stored.clone().unwrap_or_default();
    let get = |asked: &[u8]| block_on(rendered(webdav, &key, asked, stored_or_none.clone()));
    if stored.is_some() || is_lock {
        const NAMES: &[u8] = b"<propfind xmlns='DAV:'><propname/></propfind>";
        documents.splice(..0, [get(b""), get(NAMES)].into_iter().flatten());
    }
    documents.extend(get(body).filter(|_| !body.is_empty()));
    let holder = Holder {
        user: None,
        tokens: &[token],
    };
    webdav
        .locking
        .locks
        .release(key.as_bytes(), holder, |_, _| false, 0);
    documents
}
