//! Multipart uploads that were begun and never completed: a server that is killed cannot abort
//! them, and their parts take space until they are removed. Those of uploads that continue are in
//! use as long as a young state names them.

use crate::kept::{self, FOLDER, UNPUBLISHED, upload_of_name};
use crate::kept_sweep::{self, StateListing};
use crate::service::{OpenError, Service};
use crate::signed::request;
use crate::store::RemoteStore;
use http::Method;
use object_store::path::Path;
use serde::Deserialize;
use std::time::SystemTime;

/// An upload that is not complete. It may be in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// The key of the object, with the prefix of the store.
    pub key: String,
    /// When it began.
    pub begun: SystemTime,
    id: String,
}

impl UnfinishedUpload {
    /// The value of [`KeptObject::upload`] if the object belongs to this upload.
    pub fn name(&self) -> String {
        kept::name_of_upload(&self.id)
    }
}

/// An object that the servers have for an upload that continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptObject {
    /// When it was written. While the upload goes on, others are written.
    pub modified: SystemTime,
    folder: String,
    name: String,
}

impl KeptObject {
    /// Its key beneath the prefix of the store.
    pub fn key(&self) -> String {
        format!(".onrush/state/{}/{}", self.folder, self.name)
    }

    /// The multipart upload that it belongs to ([`UnfinishedUpload::name`]), if it names one.
    pub fn upload(&self) -> Option<&str> {
        upload_of_name(&self.name).filter(|_| self.folder == FOLDER)
    }
}

impl RemoteStore {
    /// The folders of the state ([`onrush_store::Key::state`]) in which uploads that continue are
    /// kept, besides the records of the server.
    pub const KEPT_FOLDERS: [&str; 2] = [UNPUBLISHED, FOLDER];

    /// The objects in a folder of the state: one of [`RemoteStore::KEPT_FOLDERS`], or another one.
    /// Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// If the service does not respond with a list.
    pub fn kept_objects(&self, folder: &str) -> Result<Vec<KeptObject>, OpenError> {
        let service = self.service();
        let all = service.wait_for(async {
            let (mut all, mut listing) = (Vec::new(), StateListing::new(service, folder)?);
            while let Some(page) = listing.next().await? {
                all.extend(page.into_iter().map(|found| KeptObject {
                    modified: found.modified,
                    folder: folder.to_owned(),
                    name: found.name,
                }));
            }
            Ok::<_, onrush_store::StoreError>(all)
        });
        all.map_err(OpenError::new)
    }

    /// Removes an object, and the parts of the multipart upload that it names. Blocks the calling
    /// thread. Succeeds if there is no such object any more.
    ///
    /// # Errors
    ///
    /// If the service does not confirm it.
    pub fn remove_kept(&self, object: &KeptObject) -> Result<(), OpenError> {
        let service = self.service();
        let removed = kept_sweep::remove(service, &object.folder, &object.name);
        service.wait_for(removed).map_err(OpenError::new)
    }

    /// The unfinished multipart uploads beneath the prefix, ordered by key, one response of the
    /// service after the other. Those whose key has an empty segment, a segment of dots or a
    /// control character are left to other clients.
    pub fn unfinished_uploads(&self) -> UnfinishedUploads<'_> {
        UnfinishedUploads {
            store: self,
            after: None,
            is_done: false,
        }
    }

    /// Aborts an upload and removes its parts. Blocks the calling thread. Succeeds if there is no
    /// such upload any more.
    ///
    /// # Errors
    ///
    /// If the service does not confirm it.
    pub fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), OpenError> {
        let service = self.service();
        let query = [("uploadId", upload.id.clone())];
        service.wait_for(async {
            let path = Path::parse(&upload.key).map_err(OpenError::new)?;
            let aborted = request(service, service.limit(), Method::DELETE, &path, &query).await;
            aborted.map(drop).map_err(OpenError::new)
        })
    }
}

/// Lists of unfinished uploads. Each is requested when it is needed, with a time limit of its own,
/// which blocks the calling thread. After an error there is nothing more.
#[derive(Debug)]
pub struct UnfinishedUploads<'a> {
    store: &'a RemoteStore,
    after: Option<(String, String)>,
    is_done: bool,
}

impl Iterator for UnfinishedUploads<'_> {
    /// Fails if the service does not respond with a list.
    type Item = Result<Vec<UnfinishedUpload>, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let service = self.store.service();
        let page = service.wait_for(list(service, self.after.as_ref()));
        self.after = page.as_ref().ok().and_then(|page| page.next.clone());
        self.is_done = self.after.is_none();
        Some(page.map(|page| page.uploads))
    }
}

struct Page {
    uploads: Vec<UnfinishedUpload>,
    /// The key and the upload after which the next page begins.
    next: Option<(String, String)>,
}

/// `ListMultipartUploads`.
async fn list(service: &Service, after: Option<&(String, String)>) -> Result<Page, OpenError> {
    let mut query = vec![("uploads", String::new())];
    let prefix = service.folder_prefix(None).map_err(OpenError::new)?;
    if !prefix.is_empty() {
        query.push(("prefix", prefix));
    }
    if let Some((key, id)) = after {
        query.push(("key-marker", key.clone()));
        query.push(("upload-id-marker", id.clone()));
    }
    let text = request(
        service,
        service.limit(),
        Method::GET,
        &Path::default(),
        &query,
    )
    .await;
    parse(&text.map_err(OpenError::new)?)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listing {
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
    #[serde(default)]
    upload: Vec<Listed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    upload_id: String,
    initiated: chrono::DateTime<chrono::Utc>,
}

fn parse(text: &str) -> Result<Page, OpenError> {
    let listing: Listing = quick_xml::de::from_str(text)
        .map_err(|error| OpenError::new(format!("the list of uploads is malformed: {error}")))?;
    let uploads = listing.upload.into_iter();
    let uploads = uploads.filter(|upload| Path::parse(&upload.key).is_ok());
    let uploads = uploads.map(|upload| UnfinishedUpload {
        key: upload.key,
        begun: upload.initiated.into(),
        id: upload.upload_id,
    });
    let markers = listing.next_key_marker.zip(listing.next_upload_id_marker);
    Ok(Page {
        uploads: uploads.collect(),
        next: markers.filter(|_| listing.is_truncated),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn lists_are_parsed() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
            <ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Bucket>b</Bucket><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
            <NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>a&amp;b</Key>\
            <UploadId>1</UploadId><Initiated>1970-01-01T00:01:00.000Z</Initiated></Upload>\
            <Upload><Key>c</Key><UploadId>2</UploadId><Initiated>1970-01-01T00:00:00Z</Initiated>\
            <Owner><ID>o</ID></Owner></Upload>\
            <Upload><Key>d//e</Key><UploadId>3</UploadId>\
            <Initiated>1970-01-01T00:00:00Z</Initiated></Upload></ListMultipartUploadsResult>";
        let page = parse(text).expect("valid");
        let found: Vec<_> = page
            .uploads
            .iter()
            .map(|one| (&one.key[..], &one.id[..]))
            .collect();
        assert_eq!(found, [("a&b", "1"), ("c", "2")]);
        assert_eq!(page.uploads[0].begun, UNIX_EPOCH + Duration::from_secs(60));
        assert_eq!(page.next, Some(("k".to_owned(), "i".to_owned())));
        let empty = parse("<ListMultipartUploadsResult></ListMultipartUploadsResult>");
        let empty = empty.expect("valid");
        assert!(empty.uploads.is_empty() && empty.next.is_none());
        assert!(parse("not XML").is_err());
    }
}
