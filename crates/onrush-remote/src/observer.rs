//! Observes each HTTP request of `object_store` to the service. It reports a failure only as text,
//! so the status of the last response is kept beside the operation. It also decides alone which
//! requests it repeats; here those end that must not be repeated.

use crate::breaker::Breaker;
use crate::error::Failure;
use crate::fields::make_readable;
use crate::metrics::RemoteMetrics;
use crate::record::Recorder;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{HeaderMap, IF_MATCH, IF_NONE_MATCH};
use http::{StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use std::cell::Cell;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// What the query of a listing contains.
const LISTING: &str = "list-type=2";
/// The root of a listing, which is within the first bytes.
const ROOT: &[u8] = b"<ListBucketResult";
const ROOT_WITHIN: usize = 1024;

tokio::task_local! {
    /// The operation that this task runs.
    static OPERATION: Operation;
}

#[derive(Debug, Default)]
struct Operation {
    seen: Cell<Seen>,
    /// When it ends at the latest.
    until: Option<Instant>,
    /// Whether it finds out how the service responds, so its requests are sent in any case.
    is_probe: bool,
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
    /// The service wants no request before.
    not_before: Option<Instant>,
}

impl Operation {
    /// Runs a future as this operation. Also returns what its requests have shown.
    async fn run<T>(self, future: impl Future<Output = T>) -> (T, Seen) {
        OPERATION
            .scope(self, async {
                let output = future.await;
                (output, seen())
            })
            .await
    }
}

/// Runs an operation whose requests end at `until`. Also returns what they have shown.
pub(crate) async fn observe<T>(until: Instant, operation: impl Future<Output = T>) -> (T, Seen) {
    let own = Operation {
        until: Some(until),
        ..Operation::default()
    };
    own.run(operation).await
}

/// As [`observe`], for an operation whose requests are sent even if the service cannot be reached.
pub(crate) async fn probe<T>(until: Instant, operation: impl Future<Output = T>) -> (T, Seen) {
    let own = Operation {
        until: Some(until),
        is_probe: true,
        ..Operation::default()
    };
    own.run(operation).await
}

/// What the requests of the operation that this task runs have shown. Nothing if it runs none.
pub(crate) fn seen() -> Seen {
    OPERATION.try_with(|own| own.seen.get()).unwrap_or_default()
}

/// Makes clients that note the result of each request.
#[derive(Debug)]
pub(crate) struct Connector {
    connector: ReqwestConnector,
    recorder: Recorder,
    bucket: Arc<str>,
}

impl Connector {
    /// `bucket`: the beginning of the addresses of the requests to note. Those for credentials go
    /// elsewhere, and say nothing about the service.
    pub(crate) fn new(recorder: Recorder, bucket: &str) -> Connector {
        Connector {
            connector: ReqwestConnector::default(),
            recorder,
            bucket: bucket.into(),
        }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Observed {
            client: self.connector.connect(options)?,
            recorder: self.recorder.clone(),
            bucket: self.bucket.clone(),
        }))
    }
}

#[derive(Debug)]
struct Observed {
    client: HttpClient,
    recorder: Recorder,
    bucket: Arc<str>,
}

impl Observed {
    fn is_of_bucket(&self, uri: &Uri) -> bool {
        let uri = uri.to_string();
        let beginning = uri.get(..self.bucket.len());
        beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(&self.bucket))
    }
}

#[async_trait]
impl HttpService for Observed {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !self.is_of_bucket(request.uri()) {
            return self.client.execute(request).await;
        }
        let operation = OPERATION.try_with(|own| (own.seen.get(), own.until, own.is_probe));
        let (mut seen, until, is_probe) = operation.unwrap_or_default();
        let keep = |seen| {
            let _ = OPERATION.try_with(|own| own.seen.set(seen));
        };
        if self.recorder.breaker.is_open() && !is_probe {
            seen.last = Some(Failure::Connection);
            keep(seen);
            return Err(not_repeated("the service cannot be reached"));
        }
        if let Some(not_before) = seen.not_before.take() {
            tokio::time::sleep_until(not_before).await;
        }
        let metrics = &self.recorder.metrics;
        if seen.last.is_some_and(Failure::may_be_repeated) {
            metrics.retry();
        }
        let (method, uri) = (request.method().clone(), request.uri());
        let is_listing = uri.query().is_some_and(|query| query.contains(LISTING));
        let is_change = !method.is_safe();
        // What may be made is waited for: the response says whether it was.
        let ends_in_outage = !is_change && !is_probe;
        let is_conditional = is_change && has_condition(request.headers());
        let sent = request.body().content_length() as u64;
        let recorded = self.recorder.begin(method);
        let executed = execute(&self.client, request, until);
        let mut result = match ends_in_outage {
            true => until_open(&self.recorder.breaker, executed).await,
            false => executed.await,
        };
        seen.last = recorded.end(match &result {
            Ok(response) => Ok((response.status(), response.headers())),
            Err(error) => Err((failure(error), Some(error as &(dyn Error + 'static)))),
        });
        if result.is_ok() {
            metrics.sent(sent);
        }
        if is_change {
            seen.is_uncertain |= match (&mut result, seen.last) {
                (Ok(response), Some(failure)) => failure.is_uncertain(&busy_body(response).await),
                (Ok(_), None) => false,
                (Err(error), _) => error.kind() != HttpErrorKind::Connect,
            };
        }
        let pause = seen.last.map_or(Some(Duration::ZERO), Failure::pause);
        seen.not_before = pause.map(|pause| Instant::now() + pause);
        keep(seen);
        // A repetition would come too early, or could make a change again that was made and undone.
        let is_last = pause.is_none() || (is_conditional && seen.is_uncertain);
        match result {
            Err(error) if is_last => Err(not_repeated(error)),
            Ok(response) if is_last => Err(not_repeated(response.status().to_string())),
            Ok(response) if is_listing && response.status().is_success() => {
                listing(counted(response, metrics)).await
            }
            result => result.map(|mut response| {
                make_readable(response.headers_mut());
                counted(response, metrics)
            }),
        }
    }
}

async fn execute(
    client: &HttpClient,
    request: HttpRequest,
    until: Option<Instant>,
) -> Result<HttpResponse, HttpError> {
    match until {
        Some(until) => tokio::time::timeout_at(until, client.execute(request))
            .await
            .unwrap_or_else(|elapsed| Err(HttpError::new(HttpErrorKind::Timeout, elapsed))),
        None => client.execute(request).await,
    }
}

/// Ends a request when the breaker opens: the service does not respond.
async fn until_open(
    breaker: &Breaker,
    executed: impl Future<Output = Result<HttpResponse, HttpError>>,
) -> Result<HttpResponse, HttpError> {
    let (mut executed, mut opens) = (pin!(executed), pin!(breaker.opens()));
    poll_fn(|cx| match executed.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => opens.as_mut().poll(cx).map(|()| {
            let reason = io::Error::other("the service does not respond");
            Err(HttpError::new(HttpErrorKind::Request, reason))
        }),
    })
    .await
}

fn failure(error: &HttpError) -> Failure {
    match error.kind() {
        HttpErrorKind::Timeout => Failure::Timeout,
        _ => Failure::Connection,
    }
}

fn has_condition(headers: &HeaderMap) -> bool {
    headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH)
}

/// An error after which `object_store` does not repeat the request.
fn not_repeated(reason: impl Into<Box<dyn Error + Send + Sync>>) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, io::Error::other(reason))
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

/// A response whose bytes are counted as they arrive.
fn counted(response: HttpResponse, metrics: &Arc<RemoteMetrics>) -> HttpResponse {
    response.map(|body| {
        HttpResponseBody::new(Counted {
            body,
            metrics: metrics.clone(),
        })
    })
}

struct Counted {
    body: HttpResponseBody,
    metrics: Arc<RemoteMetrics>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            self.metrics.received(bytes.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request};
    use std::net::TcpListener;

    /// A server for credentials that closes each connection after the request.
    #[test]
    fn requests_for_credentials_say_nothing_about_the_service() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = std::io::Read::read(&mut &stream, &mut [0; 1024]);
            }
        });
        let recorder = Recorder {
            metrics: Arc::default(),
            breaker: Arc::new(Breaker::new(String::new(), Duration::ZERO)),
        };
        let connector = Connector::new(recorder.clone(), "http://127.0.0.1:9/bucket");
        let options = ClientOptions::new().with_allow_http(true);
        let client = connector.connect(&options).expect("a client");
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        let until = Instant::now() + Duration::from_secs(60);
        let requests = observe(until, async {
            for _ in 0..5 {
                let request = Request::builder()
                    .method(Method::PUT)
                    .uri(format!("http://{address}/latest/api/token"))
                    .body(Bytes::from_static(b"x").into());
                let response = client.execute(request.expect("a request")).await;
                response.expect_err("it is closed");
            }
        });
        let ((), seen) = runtime.block_on(requests);
        assert!(seen.last.is_none() && !seen.is_uncertain);
        assert!(!recorder.breaker.is_open());
        assert_eq!(recorder.metrics.requests(), []);
    }
}
