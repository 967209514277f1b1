//! Requests by a signed URL, for what `object_store` has no operation for.

use crate::error::{Failure, store_error};
use crate::service::Service;
use http::{Method, StatusCode};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use onrush_store::{Result, StoreError};
use std::time::{Duration, Instant};

/// A signed URL is valid for so long.
const VALID: Duration = Duration::from_secs(60);

/// Makes a request without a body. Returns the body of the response. What a DELETE does not find
/// is deleted.
pub(crate) async fn request(
    service: &Service,
    method: Method,
    path: &Path,
    query: &[(&str, String)],
) -> Result<String> {
    let query = query.iter().map(|(name, value)| (*name, value.clone()));
    let options = SignedUrlOptions::new().with_query(query);
    let client = &service.client;
    let url = client.signed_url_opts(method.clone(), path, VALID, &options);
    let url = url.await.map_err(|error| store_error(&error, None))?;
    let begun = Instant::now();
    let response = service.streams.request(method.clone(), url).send().await;
    let status = (response.as_ref().ok()).map(|response| response.status().as_u16());
    (service.metrics).record(method.as_str(), status, begun.elapsed());
    let response = response.map_err(|error| failure(&error))?;
    let status = response.status();
    let is_gone = method == Method::DELETE && status == StatusCode::NOT_FOUND;
    if !status.is_success() && !is_gone {
        return Err(Failure::of_response(status, response.headers()).to_store_error());
    }
    response.text().await.map_err(|error| failure(&error))
}

fn failure(error: &reqwest::Error) -> StoreError {
    let failure = match error.is_timeout() {
        true => Failure::Timeout,
        false => Failure::Connection,
    };
    failure.to_store_error()
}
