//! Lists a folder by pages of `ListObjectsV2`.
//!
//! The service orders keys by their bytes. A folder is the common beginning of keys, with its
//! slash: `a-b` precedes `a/`, which is the folder `a`.
//!
//! Other clients may store keys that this crate has no name for: with `//`, a segment of dots or a
//! control character. `object_store` refuses a whole response for one of them. Then the request is
//! made once more, here, and such keys are omitted.

use crate::features::features;
use crate::properties::{FOLDER_VERSION, properties};
use crate::service::Service;
use crate::signed;
use http::Method;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta};
use onrush_store::{Entry, Key, Kind, ListHow, Page, Result, StoreError};
use serde::Deserialize;
use std::sync::Arc;
use tokio::time::Instant;

/// The most keys of one response.
const KEYS_MAX: usize = 1000;
/// The most requests for one page. A page of the longest limit needs eleven; those of a folder with
/// many hidden names may have fewer entries than the limit.
const REQUESTS_MAX: usize = 20;
/// Begins a name that no object has, and sorts after every object of a folder.
const LAST: &str = "\u{10ffff}";

/// One page of a folder.
pub(crate) async fn list(
    service: &Arc<Service>,
    folder: Option<&Key>,
    how: &ListHow,
) -> Result<Page> {
    let (prefix, until) = (service.folder_prefix(folder)?, service.limit());
    let features = features(None);
    let limit = how.limit.clamp(1, ListHow::LIMIT_MAX);
    let mut offset = match &how.after {
        Some(after) => Some(start_after(&prefix, after)?),
        None => None,
    };
    let (mut token, mut entries): (Option<String>, Vec<Entry>) = (None, Vec::new());
    let (mut is_empty, mut last) = (true, None);
    for number in 0..REQUESTS_MAX {
        let max_keys = match number {
            // One more than needed tells whether this page is the last.
            0 => (limit + 1).min(KEYS_MAX),
            // It depends on how many names are hidden.
            _ => KEYS_MAX,
        };
        let options = PaginatedListOptions {
            offset: offset.take(),
            delimiter: Some("/".into()),
            max_keys: Some(max_keys),
            page_token: token.take(),
            ..PaginatedListOptions::default()
        };
        let found = request(service, until, &prefix, options).await?;
        is_empty &= found.last.is_none();
        let more = entries_of(&prefix, &found.result)?;
        for entry in more {
            let is_own = folder.is_none() && entry.name.eq_ignore_ascii_case(b".onrush");
            let is_hidden = entry.name.starts_with(b".") && !how.hidden;
            // Ceph and AWS differ in whether they repeat the folder at which a page begins.
            let position = features.position(&entry);
            let is_repeated = how.after.as_ref().is_some_and(|after| position <= *after);
            if !is_own && !is_hidden && !is_repeated {
                entries.push(entry);
            }
        }
        if entries.len() > limit {
            entries.truncate(limit);
            let next = entries.last().map(|last| features.position(last));
            return Ok(Page { entries, next });
        }
        last = found.last.or(last);
        token = found.next;
        if token.is_none() {
            break;
        }
    }
    // Without an object there is no folder.
    if is_empty && token.is_none() && how.after.is_none() && folder.is_some() {
        return Err(StoreError::NotFound);
    }
    let next = match token {
        Some(_) => Some(after_last(&prefix, last, how).ok_or(StoreError::BadResponse)?),
        None => None,
    };
    Ok(Page { entries, next })
}

/// Where the page after the `last` key begins, which may be hidden. `None` if the service has sent
/// nothing that comes after the beginning of this page.
fn after_last(prefix: &str, last: Option<String>, how: &ListHow) -> Option<Vec<u8>> {
    let next = last?.strip_prefix(prefix)?.as_bytes().to_vec();
    let is_later = how.after.as_ref().is_none_or(|after| *after < next);
    is_later.then_some(next)
}

/// Whether there is an object beneath the folder.
pub(crate) async fn is_folder(
    service: &Arc<Service>,
    until: Instant,
    folder: &Key,
) -> Result<bool> {
    let prefix = service.folder_prefix(Some(folder))?;
    let options = PaginatedListOptions {
        max_keys: Some(1),
        ..PaginatedListOptions::default()
    };
    let found = request(service, until, &prefix, options).await?;
    Ok(found.last.is_some())
}

/// The response to one request.
struct FoundKeys {
    result: ListResult,
    /// The last key or folder (with its slash), also if it is omitted. `None` if there are none.
    last: Option<String>,
    /// The token of the next page.
    next: Option<String>,
}

async fn request(
    service: &Arc<Service>,
    until: Instant,
    prefix: &str,
    options: PaginatedListOptions,
) -> Result<FoundKeys> {
    let (client, at, how) = (service.client.clone(), prefix.to_owned(), options.clone());
    let listing = service.start(until, async move {
        let prefix = (!at.is_empty()).then_some(&at[..]);
        client.list_paginated(prefix, how).await
    });
    match listing.await {
        Err(StoreError::InvalidKey) => request_some(service, until, prefix, options).await,
        found => found.map(|found| {
            let objects = found.result.objects.iter();
            let objects = objects.map(|object| object.location.to_string());
            let folders = found.result.common_prefixes.iter();
            let folders = folders.map(|folder| format!("{folder}/"));
            FoundKeys {
                last: objects.chain(folders).max(),
                result: found.result,
                next: found.page_token,
            }
        }),
    }
}

/// As [`request`], without the keys that `object_store` refuses.
async fn request_some(
    service: &Arc<Service>,
    until: Instant,
    prefix: &str,
    options: PaginatedListOptions,
) -> Result<FoundKeys> {
    let mut query = vec![("list-type", "2".to_owned())];
    let delimiter = options.delimiter.map(|delimiter| delimiter.into_owned());
    for (name, value) in [
        (
            "prefix",
            Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
        ),
        ("delimiter", delimiter),
        ("max-keys", options.max_keys.map(|keys| keys.to_string())),
        ("start-after", options.offset),
        ("continuation-token", options.page_token),
    ] {
        query.extend(value.map(|value| (name, value)));
    }
    let requesting = service.clone();
    let text = service.spawn(async move {
        signed::request(&requesting, until, Method::GET, &Path::default(), &query).await
    });
    parse(&text.await?)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listing {
    next_continuation_token: Option<String>,
    #[serde(default)]
    contents: Vec<Listed>,
    #[serde(default)]
    common_prefixes: Vec<Folder>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    size: u64,
    last_modified: chrono::DateTime<chrono::Utc>,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Folder {
    prefix: String,
}

fn parse(text: &str) -> Result<FoundKeys> {
    let listing: Listing = quick_xml::de::from_str(text).map_err(|_| StoreError::BadResponse)?;
    let objects = listing.contents.iter().map(|listed| &listed.key);
    let folders = listing.common_prefixes.iter().map(|folder| &folder.prefix);
    let last = objects.chain(folders).max().cloned();
    let objects = listing.contents.into_iter().filter_map(|listed| {
        Some(ObjectMeta {
            location: Path::parse(&listed.key).ok()?,
            last_modified: listed.last_modified,
            size: listed.size,
            e_tag: listed.e_tag,
            version: None,
        })
    });
    let folders = listing.common_prefixes.into_iter();
    let folders = folders.filter_map(|folder| Path::parse(&folder.prefix).ok());
    Ok(FoundKeys {
        result: ListResult {
            objects: objects.collect(),
            common_prefixes: folders.collect(),
            extensions: http::Extensions::default(),
        },
        last,
        next: listing.next_continuation_token,
    })
}

/// The key after which a page begins.
fn start_after(prefix: &str, after: &[u8]) -> Result<String> {
    let after = std::str::from_utf8(after).map_err(|_| StoreError::InvalidKey)?;
    let last = if after.ends_with('/') { LAST } else { "" };
    Ok(format!("{prefix}{after}{last}"))
}

/// The entries of a response in the order of the service.
fn entries_of(prefix: &str, found: &ListResult) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for object in &found.objects {
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
    for folder in &found.common_prefixes {
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
    let features = features(None);
    entries.sort_by_cached_key(|entry| features.position(entry));
    Ok(entries)
}
