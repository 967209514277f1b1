//! Observes each HTTP request to the service: `object_store` reports a failure only as text, so the
//! status of the last response is kept beside the operation.

use crate::breaker::Breaker;
use crate::error::Failure;
use crate::metrics::RemoteMetrics;
use async_trait::async_trait;
use http::Method;
use http::header::{CONTENT_LENGTH, HeaderMap};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Instant;

tokio::task_local! {
    /// How the last request of the operation that this task runs failed, if it did.
    static LAST: Cell<Option<Failure>>;
    /// Set if the operation finds out whether the service responds.
    static IS_PROBE: ();
}

/// Runs an operation. Also returns how its last request failed.
pub(crate) async fn observe<T>(operation: impl Future<Output = T>) -> (T, Option<Failure>) {
    LAST.scope(Cell::default(), async {
        let output = operation.await;
        (output, LAST.with(Cell::get))
    })
    .await
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
        if self.breaker.is_open() && IS_PROBE.try_with(|()| ()).is_err() {
            let _ = LAST.try_with(|last| last.set(Some(Failure::Connection)));
            let reason = io::Error::other("the service cannot be reached");
            return Err(HttpError::new(HttpErrorKind::Unknown, reason)); // It is not repeated.
        }
        // Requests of the runtime itself, such as for credentials, belong to no operation.
        let last = LAST.try_with(Cell::get).unwrap_or_default();
        if last.is_some_and(Failure::may_be_repeated) {
            self.metrics.retry();
        }
        self.metrics.sent(length(request.headers()));
        let begun = Instant::now();
        let result = self.client.execute(request).await;
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
        let failure = match &result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(Failure::of_response(response.status(), response.headers())),
            Err(error) => Some(match error.kind() {
                HttpErrorKind::Timeout => Failure::Timeout,
                _ => Failure::Connection,
            }),
        };
        self.breaker.record(failure, Instant::now());
        let _ = LAST.try_with(|last| last.set(failure));
        result
    }
}

/// The announced length of a body; 0 without one.
pub(crate) fn length(headers: &HeaderMap) -> u64 {
    let field = headers.get(CONTENT_LENGTH);
    let length = field.and_then(|value| value.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}
