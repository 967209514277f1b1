//! Requests by a signed URL, for what `object_store` has no operation for. They are made once.

use crate::error::{Failure, store_error};
use crate::service::Service;
use http::{HeaderMap, Method, StatusCode};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use onrush_store::{Result, StoreError};
use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// A signed URL is valid for so long, from the time of this machine on. It is used at once, and
/// checked when the request begins: who reads it later, such as in the log of a proxy, cannot use
/// it. The clock of this machine may be slow by this much.
const VALID: Duration = Duration::from_secs(60);

/// Why a request has no response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unanswered {
    pub(crate) failure: Failure,
    /// Whether the service may have received it.
    pub(crate) is_sent: bool,
}

impl From<Unanswered> for StoreError {
    fn from(unanswered: Unanswered) -> StoreError {
        unanswered.failure.to_store_error()
    }
}

/// The URL of a request with its signature.
pub(crate) async fn url(
    service: &Service,
    method: Method,
    path: &Path,
    query: &[(&str, String)],
    signed_headers: HeaderMap,
) -> Result<String> {
    let query = query.iter().map(|(name, value)| (*name, value.clone()));
    let mut options = SignedUrlOptions::new().with_query(query);
    options.signed_headers = signed_headers;
    let url = (service.client).signed_url_opts(method, path, VALID, &options);
    let url = url.await.map_err(|error| store_error(&error, None))?;
    Ok(url.into())
}

/// Sends a request, and waits for the response until `end` is ready: then the service has not
/// responded in time. Fails at once if the service cannot be reached.
pub(crate) async fn send(
    service: &Service,
    method: Method,
    request: reqwest::RequestBuilder,
    end: impl Future<Output = ()>,
) -> Result<reqwest::Response, Unanswered> {
    if service.recorder.breaker.is_open() {
        return Err(Unanswered {
            failure: Failure::Connection,
            is_sent: false,
        });
    }
    let recorded = service.recorder.begin(method);
    let (mut sending, mut end) = (pin!(request.send()), pin!(end));
    let response = poll_fn(|cx| match sending.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    });
    let (failure, is_sent, error) = match response.await {
        Some(Ok(response)) => {
            recorded.end(Ok((response.status(), response.headers())));
            return Ok(response);
        }
        Some(Err(error)) => (failure(&error), !error.is_connect(), Some(error)),
        None => (Failure::Timeout, true, None),
    };
    let error = (error.as_ref()).map(|error| error as &(dyn Error + 'static));
    recorded.end(Err((failure, error)));
    Err(Unanswered { failure, is_sent })
}

/// Makes a request without a body. Returns the body of the response, which has to be complete at
/// `until`. What a DELETE does not find is deleted.
pub(crate) async fn request(
    service: &Service,
    until: Instant,
    method: Method,
    path: &Path,
    query: &[(&str, String)],
) -> Result<String> {
    let url = url(service, method.clone(), path, query, HeaderMap::new()).await?;
    let request = service.streams.request(method.clone(), url);
    let response = send(
        service,
        method.clone(),
        request,
        tokio::time::sleep_until(until),
    )
    .await?;
    let status = response.status();
    let is_gone = method == Method::DELETE && status == StatusCode::NOT_FOUND;
    if !status.is_success() && !is_gone {
        return Err(Failure::of_response(status, response.headers()).to_store_error());
    }
    let text = tokio::time::timeout_at(until, response.text()).await;
    let text = text.map_err(|_| StoreError::Timeout)?;
    let text = text.map_err(|error| failure(&error).to_store_error())?;
    service.recorder.metrics.received(text.len() as u64);
    Ok(text)
}

fn failure(error: &reqwest::Error) -> Failure {
    match error.is_timeout() {
        true => Failure::Timeout,
        false => Failure::Connection,
    }
}
