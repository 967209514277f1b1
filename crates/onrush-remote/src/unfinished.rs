//! Multipart uploads that were begun and never completed: a server that is killed cannot abort
//! them, and their parts take space until they are removed.

use crate::error::Failure;
use crate::service::{OpenError, Service};
use crate::store::RemoteStore;
use http::{Method, StatusCode};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use onrush_store::StoreError;
use serde::Deserialize;
use std::time::{Duration, SystemTime};

/// A signed URL is valid for so long.
const VALID: Duration = Duration::from_secs(60);

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
    /// The unfinished multipart uploads beneath the prefix, ordered by key. Blocks the calling
    /// thread.
    ///
    /// # Errors
    ///
    /// If the service does not respond with their list.
    pub fn unfinished_uploads(&self) -> Result<Vec<UnfinishedUpload>, OpenError> {
        let service = self.service();
        service.block_on(async {
            let (mut all, mut after) = (Vec::new(), None);
            loop {
                let page = list(service, after.as_ref()).await?;
                all.extend(page.uploads);
                after = page.next;
                if after.is_none() {
                    return Ok(all);
                }
            }
        })
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
        service.block_on(async {
            let path = Path::parse(&upload.key).map_err(OpenError::new)?;
            request(service, Method::DELETE, &path, &query)
                .await
                .map(drop)
        })
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
    let text = request(service, Method::GET, &Path::default(), &query).await?;
    parse(&text)
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
    let uploads = listing.upload.into_iter().map(|upload| UnfinishedUpload {
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

/// Makes a request without a body. Returns the body of the response.
async fn request(
    service: &Service,
    method: Method,
    path: &Path,
    query: &[(&str, String)],
) -> Result<String, OpenError> {
    let query = query.iter().map(|(name, value)| (*name, value.clone()));
    let options = SignedUrlOptions::new().with_query(query);
    let client = &service.client;
    let url = client.signed_url_opts(method.clone(), path, VALID, &options);
    let url = url.await.map_err(OpenError::new)?;
    let response = service.streams.request(method.clone(), url).send().await;
    let response = response.map_err(|error| OpenError::new(error.without_url()))?;
    let status = response.status();
    let is_gone = method == Method::DELETE && status == StatusCode::NOT_FOUND;
    if !status.is_success() && !is_gone {
        let failure = Failure::of_response(status, response.headers());
        let meaning: StoreError = failure.to_store_error();
        return Err(OpenError::new(format!("{status}: {meaning}")));
    }
    let text = response.text().await;
    text.map_err(|error| OpenError::new(error.without_url()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn lists_are_parsed() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
            <ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
            <Bucket>b</Bucket><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
            <NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>a&amp;b</Key>\
            <UploadId>1</UploadId><Initiated>1970-01-01T00:01:00.000Z</Initiated></Upload>\
            <Upload><Key>c</Key><UploadId>2</UploadId><Initiated>1970-01-01T00:00:00Z</Initiated>\
            <Owner><ID>o</ID></Owner></Upload></ListMultipartUploadsResult>";
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
