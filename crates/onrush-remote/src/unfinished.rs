//! Multipart uploads that were begun and never completed: a server that is killed cannot abort
//! them, and their parts take space until they are removed.

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

impl RemoteStore {
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
