//! Finds what uploads that continue have left in the bucket: states that no one has changed for a
//! long time, and objects that were never published.

use crate::kept::{self, FOLDER, UNPUBLISHED, upload_of_name};
use crate::service::Service;
use object_store::ObjectMeta;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use onrush_store::{Key, Result};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An object of the state of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundKept {
    /// Its name in the folder.
    pub(crate) name: String,
    pub(crate) modified: SystemTime,
}

/// The objects in a folder of the state, ordered by name, one response after the other.
pub(crate) struct StateListing<'a> {
    service: &'a Service,
    prefix: String,
    token: Option<String>,
    is_done: bool,
}

impl<'a> StateListing<'a> {
    pub(crate) fn new(service: &'a Service, folder: &str) -> Result<StateListing<'a>> {
        Ok(StateListing {
            service,
            prefix: service.folder_prefix(Some(&Key::state(folder.as_bytes())?))?,
            token: None,
            is_done: false,
        })
    }

    /// The next objects; `None` after the last ones.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<FoundKept>>> {
        if self.is_done {
            return Ok(None);
        }
        let options = PaginatedListOptions {
            page_token: self.token.take(),
            ..PaginatedListOptions::default()
        };
        let (client, prefix) = (self.service.client.clone(), self.prefix.clone());
        let list = async move { client.list_paginated(Some(&prefix), options).await };
        let page = self.service.start(self.service.limit(), list).await?;
        self.token = page.page_token;
        self.is_done = self.token.is_none();
        let objects = page.result.objects.iter();
        let found = objects.filter_map(|object: &ObjectMeta| {
            Some(FoundKept {
                name: object.location.as_ref().strip_prefix(&self.prefix)?.into(),
                modified: object.last_modified.into(),
            })
        });
        Ok(Some(found.collect()))
    }
}

/// The states of one upload.
#[derive(Default)]
struct Group {
    names: Vec<String>,
    is_old: bool,
}

/// Removes the states of uploads of which all are older than `age`, with their parts, and objects
/// that were not published for so long. Returns the number of uploads. An upload has several states
/// if a server ended between two requests.
pub(crate) async fn discard_older(service: &Arc<Service>, age: Duration) -> Result<usize> {
    let now = SystemTime::now();
    let is_old = |found: &FoundKept| {
        let passed = now.duration_since(found.modified);
        passed.is_ok_and(|passed| passed > age)
    };
    let (mut discarded, mut group) = (0, Group::default());
    let mut listing = StateListing::new(service, FOLDER)?;
    while let Some(page) = listing.next().await? {
        for found in page {
            let upload = upload_of_name(&found.name);
            let is_same = group
                .names
                .last()
                .is_some_and(|last: &String| upload.is_some() && upload_of_name(last) == upload);
            if !is_same {
                discarded += discard(service, std::mem::take(&mut group)).await?;
                group.is_old = true;
            }
            group.is_old &= is_old(&found);
            group.names.push(found.name);
        }
    }
    discarded += discard(service, group).await?;
    let (mut old, mut listing) = (Vec::new(), StateListing::new(service, UNPUBLISHED)?);
    while let Some(page) = listing.next().await? {
        old.extend(page.into_iter().filter(is_old).map(|found| found.name));
    }
    // AWS gives an object the time at which its multipart upload began, so one that was completed
    // now may look old.
    let in_use = match old.is_empty() {
        true => HashSet::new(),
        false => unpublished_in_use(service).await?,
    };
    for name in old.iter().filter(|name| !in_use.contains(*name)) {
        remove(service, UNPUBLISHED, name).await?;
    }
    Ok(discarded)
}

/// The names of the unpublished objects that belong to a state.
async fn unpublished_in_use(service: &Service) -> Result<HashSet<String>> {
    let folder = service.folder_prefix(Some(&Key::state(UNPUBLISHED.as_bytes())?))?;
    let (mut in_use, mut listing) = (HashSet::new(), StateListing::new(service, FOLDER)?);
    while let Some(page) = listing.next().await? {
        let names = page.iter().map(|found| &found.name);
        for name in names.filter(|name| upload_of_name(name).is_some()) {
            let path = kept::path_of_parts(service, service.limit(), name).await?;
            let name = path
                .as_ref()
                .map(|path| path.as_ref().strip_prefix(&folder));
            in_use.extend(name.flatten().map(str::to_owned));
        }
    }
    Ok(in_use)
}

async fn discard(service: &Service, group: Group) -> Result<usize> {
    if !group.is_old || group.names.is_empty() {
        return Ok(0);
    }
    for name in &group.names {
        kept::discard(service, service.limit(), name).await?;
    }
    Ok(1)
}

/// Removes an object of the state.
pub(crate) async fn remove(service: &Service, folder: &str, name: &str) -> Result<()> {
    if folder == FOLDER {
        return kept::discard(service, service.limit(), name).await;
    }
    let key = Key::state(format!("{folder}/{name}").as_bytes())?;
    kept::remove_object(service, service.limit(), service.path(&key)?).await
}
