//! Lists a folder by pages of `ListObjectsV2`.
//!
//! The service orders keys by their bytes. A folder is the common beginning of keys, with its
//! slash: `a-b` precedes `a/`, which is the folder `a`.

use crate::properties::{FOLDER_VERSION, properties};
use crate::service::{Service, Task};
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use onrush_store::{Entry, Key, Kind, ListHow, Page, Result, StoreError};
use std::sync::Arc;

/// Begins a name that no object has, and sorts after every object of a folder.
const LAST: &str = "\u{10ffff}";

/// One page of a folder.
pub(crate) async fn list(
    service: &Arc<Service>,
    folder: Option<&Key>,
    how: &ListHow,
) -> Result<Page> {
    let prefix = service.folder_prefix(folder)?;
    let limit = how.limit.clamp(1, ListHow::LIMIT_MAX);
    let mut offset = match &how.after {
        Some(after) => Some(start_after(&prefix, after)?),
        None => None,
    };
    let (mut token, mut entries): (Option<String>, Vec<Entry>) = (None, Vec::new());
    let mut is_empty = true;
    loop {
        // One more than needed tells whether this page is the last.
        let max_keys = (limit - entries.len() + 1).min(1000);
        let options = PaginatedListOptions {
            offset: offset.take(),
            delimiter: Some("/".into()),
            max_keys: Some(max_keys),
            page_token: token.take(),
            ..PaginatedListOptions::default()
        };
        let found = request(service, &prefix, options).await?;
        let (more, next) = page(&prefix, found)?;
        is_empty &= more.is_empty();
        for entry in more {
            let is_own = folder.is_none() && entry.name.eq_ignore_ascii_case(b".onrush");
            let is_hidden = entry.name.starts_with(b".") && !how.hidden;
            // Ceph and AWS differ in whether they repeat the folder at which a page begins.
            let is_repeated =
                (how.after.as_deref()).is_some_and(|after| entry_key(&entry).as_slice() <= after);
            if !is_own && !is_hidden && !is_repeated {
                entries.push(entry);
            }
        }
        if entries.len() > limit {
            entries.truncate(limit);
            let next = entries.last().map(entry_key);
            return Ok(Page { entries, next });
        }
        token = next;
        if token.is_none() {
            break;
        }
    }
    // Without an object there is no folder.
    if is_empty && how.after.is_none() && folder.is_some() {
        return Err(StoreError::NotFound);
    }
    Ok(Page {
        entries,
        next: None,
    })
}

/// Whether there is an object beneath the folder.
pub(crate) async fn is_folder(service: &Arc<Service>, folder: &Key) -> Result<bool> {
    let prefix = service.folder_prefix(Some(folder))?;
    let options = PaginatedListOptions {
        max_keys: Some(1),
        ..PaginatedListOptions::default()
    };
    let found = request(service, &prefix, options).await?;
    Ok(!found.result.objects.is_empty())
}

fn request(
    service: &Arc<Service>,
    prefix: &str,
    options: PaginatedListOptions,
) -> Task<PaginatedListResult> {
    let client = service.client.clone();
    let prefix = prefix.to_owned();
    service.start(async move {
        let prefix = (!prefix.is_empty()).then_some(&prefix[..]);
        client.list_paginated(prefix, options).await
    })
}

/// The position of an entry in the order of the service: a folder has its slash.
fn entry_key(entry: &Entry) -> Vec<u8> {
    let mut key = entry.name.clone();
    if entry.kind == Kind::Directory {
        key.push(b'/');
    }
    key
}

/// The key after which a page begins.
fn start_after(prefix: &str, after: &[u8]) -> Result<String> {
    let after = std::str::from_utf8(after).map_err(|_| StoreError::InvalidKey)?;
    let last = if after.ends_with('/') { LAST } else { "" };
    Ok(format!("{prefix}{after}{last}"))
}

/// The entries of a response in the order of the service, and the token of the next one.
fn page(prefix: &str, found: PaginatedListResult) -> Result<(Vec<Entry>, Option<String>)> {
    let mut entries = Vec::new();
    for object in &found.result.objects {
        // The object with the key of the folder and a slash marks a folder without others.
        let Some(name) = object.location.as_ref().strip_prefix(prefix) else {
            continue;
        };
        if name.is_empty() || name.len() > Key::SEGMENT_BYTES_MAX {
            continue;
        }
        let meta = properties(object)?;
        entries.push(Entry {
            name: name.into(),
            kind: Kind::File,
            size: meta.size,
            modified_ns: meta.modified_ns,
            version: meta.version,
        });
    }
    for folder in &found.result.common_prefixes {
        let Some(name) = folder.as_ref().strip_prefix(prefix) else {
            continue;
        };
        if name.is_empty() || name.len() > Key::SEGMENT_BYTES_MAX {
            continue;
        }
        entries.push(Entry {
            name: name.into(),
            kind: Kind::Directory,
            size: 0,
            modified_ns: 0,
            version: *FOLDER_VERSION,
        });
    }
    entries.sort_by_cached_key(entry_key);
    Ok((entries, found.page_token))
}
