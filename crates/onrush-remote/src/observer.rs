//! Observes each HTTP request to the service: `object_store` reports a failure only as text, so the
//! status of the last response is kept beside the operation.

use crate::error::Failure;
use async_trait::async_trait;
use http::header::RETRY_AFTER;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::cell::Cell;
use std::time::Duration;

tokio::task_local! {
    /// How the last request of this operation failed. `None` before the first one, and after one
    /// that succeeded.
    static LAST: Cell<Option<Failure>>;
}

/// Runs an operation. Also returns how its last request failed.
pub(crate) async fn observe<T>(operation: impl Future<Output = T>) -> (T, Option<Failure>) {
    LAST.scope(Cell::new(None), async {
        let output = operation.await;
        (output, LAST.get().take())
    })
    .await
}

/// Makes clients that note the result of each request.
#[derive(Debug, Default)]
pub(crate) struct Connector(ReqwestConnector);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Observed(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct Observed(HttpClient);

#[async_trait]
impl HttpService for Observed {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let result = self.0.execute(request).await;
        let failure = match &result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => {
                let field = response.headers().get(RETRY_AFTER);
                let seconds = field.and_then(|value| value.to_str().ok()?.trim().parse().ok());
                Some(Failure::Status {
                    status: response.status().as_u16(),
                    retry_after: seconds.map(Duration::from_secs),
                })
            }
            Err(error) => Some(match error.kind() {
                HttpErrorKind::Timeout => Failure::Timeout,
                _ => Failure::Connection,
            }),
        };
        // Requests of the runtime itself, such as for credentials, belong to no operation.
        let _ = LAST.try_with(|last| last.set(failure));
        result
    }
}
