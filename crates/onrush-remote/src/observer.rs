//! Observes each HTTP request to the service: `object_store` reports a failure only as text, so the
//! status of the last response is kept beside the operation.

use crate::breaker::Breaker;
use crate::error::Failure;
use crate::metrics::RemoteMetrics;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http::{Method, StatusCode};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// What the query of a listing contains.
const LISTING: &str = "list-type=2";
/// The root of a listing, which is within the first bytes.
const ROOT: &[u8] = b"<ListBucketResult";
const ROOT_WITHIN: usize = 1024;

tokio::task_local! {
    /// The requests of the operation that this task runs.
    static SEEN: Cell<Seen>;
    /// Set if the operation finds out whether the service responds.
    static IS_PROBE: ();
}

/// What the requests of an operation have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// How the last request failed, if it did.
    pub(crate) last: Option<Failure>,
    /// Whether a change has failed in a way that does not say whether it was made: the connection
    /// was lost after it was open, or the service has failed. What a repetition is refused for then
    /// says nothing about the first request; that may even be the reason.
    pub(crate) is_uncertain: bool,
}

/// Runs an operation. Also returns what its requests have shown.
pub(crate) async fn observe<T>(operation: impl Future<Output = T>) -> (T, Seen) {
    SEEN.scope(Cell::default(), async {
        let output = operation.await;
        (output, SEEN.with(Cell::get))
    })
    .await
}

/// How the last request of the operation that this task runs failed, if it did.
pub(crate) fn last_failure() -> Option<Failure> {
    SEEN.try_with(Cell::get).unwrap_or_default().last
}

/// Runs an operation whose requests are sent even if the service cannot be reached.
pub(crate) async fn probe<T>(operation: impl Future<Output = T>) -> T {
    IS_PROBE.scope((), operation).await
}

/// Makes clients that note the result of each request.
#[derive(Debug)]
pub(crate) struct Connector {
    connector: ReqwestConnector,
    metrics: Arc<RemoteMetrics>,
    breaker: Arc<Breaker>,
}

impl Connector {
    pub(crate) fn new(metrics: Arc<RemoteMetrics>, breaker: Arc<Breaker>) -> Connector {
        Connector {
            connector: ReqwestConnector::default(),
            metrics,
            breaker,
        }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Observed {
            client: self.connector.connect(options)?,
            metrics: self.metrics.clone(),
            breaker: self.breaker.clone(),
        }))
    }
}

#[derive(Debug)]
struct Observed {
    client: HttpClient,
    metrics: Arc<RemoteMetrics>,
    breaker: Arc<Breaker>,
}

#[async_trait]
impl HttpService for Observed {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let method = request.method().clone();
        // Requests of the runtime itself, such as for credentials, belong to no operation.
        let mut seen = SEEN.try_with(Cell::get).unwrap_or_default();
        if self.breaker.is_open() && IS_PROBE.try_with(|()| ()).is_err() {
            seen.last = Some(Failure::Connection);
            let _ = SEEN.try_with(|cell| cell.set(seen));
            let reason = io::Error::other("the service cannot be reached");
            return Err(HttpError::new(HttpErrorKind::Unknown, reason)); // It is not repeated.
        }
        if seen.last.is_some_and(Failure::may_be_repeated) {
            self.metrics.retry();
        }
        self.metrics.sent(length(request.headers()));
        let is_listing = request
            .uri()
            .query()
            .is_some_and(|query| query.contains(LISTING));
        let begun = Instant::now();
        let mut result = self.client.execute(request).await;
        let status = result
            .as_ref()
            .ok()
            .map(|response| response.status().as_u16());
        self.metrics
            .record(method.as_str(), status, begun.elapsed());
        if let Ok(response) = &result
            && method != Method::HEAD
        {
            self.metrics.received(length(response.headers()));
        }
        seen.last = match &result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(Failure::of_response(response.status(), response.headers())),
            Err(error) => Some(match error.kind() {
                HttpErrorKind::Timeout => Failure::Timeout,
                _ => Failure::Connection,
            }),
        };
        let error = result.as_ref().err();
        let error = error.map(|error| error as &(dyn std::error::Error + 'static));
        self.breaker.record(seen.last, error, Instant::now());
        if !method.is_safe() {
            seen.is_uncertain |= match &mut result {
                Ok(response) => match seen.last {
                    Some(failure) => failure.is_uncertain(&busy_body(response).await),
                    None => false,
                },
                Err(error) => error.kind() != HttpErrorKind::Connect,
            };
        }
        let _ = SEEN.try_with(|cell| cell.set(seen));
        match result {
            Ok(response) if is_listing && response.status().is_success() => listing(response).await,
            result => result,
        }
    }
}

/// The body of a 503, which the response keeps. Empty if it does not arrive.
async fn busy_body(response: &mut HttpResponse) -> Bytes {
    if response.status() != StatusCode::SERVICE_UNAVAILABLE {
        return Bytes::new();
    }
    let body = std::mem::replace(response.body_mut(), Bytes::new().into());
    let body = body.bytes().await.unwrap_or_default();
    *response.body_mut() = body.clone().into();
    body
}

/// A response that is a listing. `object_store` takes each document without objects, such as the
/// page of a proxy, for an empty one.
async fn listing(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (head, body) = response.into_parts();
    let body = body.bytes().await?;
    let beginning = &body[..body.len().min(ROOT_WITHIN)];
    match beginning.windows(ROOT.len()).any(|window| window == ROOT) {
        true => Ok(HttpResponse::from_parts(head, body.into())),
        false => {
            let reason = io::Error::new(io::ErrorKind::InvalidData, "the response is no listing");
            Err(HttpError::new(HttpErrorKind::Decode, reason)) // It is not repeated.
        }
    }
}

/// The announced length of a body; 0 without one.
pub(crate) fn length(headers: &HeaderMap) -> u64 {
    let field = headers.get(CONTENT_LENGTH);
    let length = field.and_then(|value| value.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}
