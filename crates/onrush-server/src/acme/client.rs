//! The HTTPS client for the ACME server.

use bytes::Bytes;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use onrush::tls::read_authorities;
use onrush::tls::rustls::ClientConfig;
use onrush_proto::date;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time limit for one response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause between two requests of an order.
const PAUSE_MAX: Duration = Duration::from_secs(86_400);
/// The longest body of a response. Certificate chains have a few kilobytes.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A client that trusts the authorities of this machine, or one of its own.
pub(super) struct HttpsClient {
    client: Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    retry_after: RetryAfter,
    /// What to do if the authority of the server's certificate is unknown.
    unknown_issuer: &'static str,
}

/// The last `Retry-After` (RFC 9110, section 10.2.3) of a response that is an error.
#[derive(Clone, Debug, Default)]
pub(super) struct RetryAfter(Arc<Mutex<Option<Duration>>>);

impl RetryAfter {
    pub(super) fn get(&self) -> Option<Duration> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, pause: Option<Duration>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = pause;
    }
}

impl HttpsClient {
    /// `ca` is a PEM file with the authorities that may have signed the server's certificate.
    ///
    /// # Errors
    /// If the file, or the authorities of this machine, cannot be read. The text is for the log.
    pub(super) fn new(ca: Option<&Path>, retry_after: RetryAfter) -> Result<HttpsClient, String> {
        let builder = HttpsConnectorBuilder::new();
        let builder = match ca {
            None => builder.try_with_platform_verifier().map_err(|error| {
                format!("cannot use the authorities of this machine (ca-certificates): {error}")
            })?,
            Some(path) => builder.with_tls_config(
                ClientConfig::builder()
                    .with_root_certificates(
                        read_authorities(path).map_err(|error| format!("acme-ca: {error}"))?,
                    )
                    .with_no_client_auth(),
            ),
        };
        let connector = builder.https_only().enable_http1().build();
        Ok(HttpsClient {
            client: Client::builder(TokioExecutor::new()).build(connector),
            retry_after,
            unknown_issuer: match ca {
                None => "; --acme-ca names the certificates of a private authority",
                Some(_) => "; the file of --acme-ca does not have its authority",
            },
        })
    }
}

impl HttpClient for HttpsClient {
    fn request(
        &self,
        request: http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let uri = request.uri().clone();
        let response = self.client.request(request);
        let retry_after = self.retry_after.clone();
        let other = |reason: String| Error::Other(reason.into());
        let unknown_issuer = self.unknown_issuer;
        Box::pin(async move {
            let received = async {
                let response = response.await.map_err(|error| {
                    let mut text = chain(&error);
                    if text.ends_with("UnknownIssuer") {
                        text += unknown_issuer;
                    }
                    text
                })?;
                let (parts, body) = response.into_parts();
                let body = http_body_util::Limited::new(body, BODY_BYTES_MAX);
                let body = body.collect().await.map_err(|error| error.to_string())?;
                Ok::<_, String>(http::Response::from_parts(parts, body.to_bytes()))
            };
            let response = tokio::time::timeout(RESPONSE_TIMEOUT, received).await;
            let response = response.unwrap_or_else(|_| Err("no response in 30 s".to_owned()));
            let mut response = response.map_err(|reason| other(format!("{uri}: {reason}")))?;
            check(&mut response, &retry_after, SystemTime::now())
                .map_err(|reason| other(format!("{uri} {reason}")))?;
            let response = response.map(http_body_util::Full::new);
            Ok(BytesResponse::from(response))
        })
    }
}

/// Stores the pause that an error asks for, and checks that it is one of an ACME server (RFC 8555,
/// section 6.7). Otherwise this is a proxy in front of it, no ACME server, or the URL is wrong.
fn check<B>(
    response: &mut http::Response<B>,
    retry_after: &RetryAfter,
    now: SystemTime,
) -> Result<(), String> {
    let pause = limit_pause(response.headers_mut(), now);
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return Ok(());
    }
    retry_after.set(pause);
    let kind = response.headers().get(http::header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/problem+json") {
        return Err(format!("responds with {status}"));
    }
    Ok(())
}

/// Returns the pause that `Retry-After` asks for, and limits the field to a day. The ACME library
/// adds it to times, which must not overflow.
fn limit_pause(headers: &mut HeaderMap, now: SystemTime) -> Option<Duration> {
    let field = headers.remove(RETRY_AFTER)?;
    let pause = pause(field.to_str().ok()?, now)?;
    headers.insert(RETRY_AFTER, pause.min(PAUSE_MAX).as_secs().into());
    Some(pause)
}

/// The pause that a `Retry-After` asks for: seconds, or a date.
fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = UNIX_EPOCH + Duration::from_secs(date::parse(text.trim().as_bytes())?);
    Some(at.duration_since(now).unwrap_or_default())
}

/// The text of an error with those of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.ends_with(&own) {
            text += &format!(": {own}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let pause = |text| pause(text, now);
        assert_eq!(pause("120"), Some(Duration::from_secs(120)));
        let date = "Sun, 06 Nov 1994 08:50:37 GMT";
        assert_eq!(pause(date), Some(Duration::from_secs(60)));
        let past = "Sat, 06 Nov 1993 08:50:37 GMT";
        assert_eq!(pause(past), Some(Duration::ZERO));
        assert_eq!(pause("soon"), None);
    }

    #[test]
    fn retry_after_is_limited_to_a_day() {
        let limited = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            limit_pause(&mut headers, UNIX_EPOCH + Duration::from_secs(784_111_777));
            let field = headers.get(RETRY_AFTER)?;
            Some(field.to_str().unwrap().to_owned())
        };
        assert_eq!(limited("120").as_deref(), Some("120"));
        assert_eq!(limited("18446744073709551615").as_deref(), Some("86400"));
        assert_eq!(limited("99999999999999999999"), None);
        let date = "Sun, 06 Nov 1994 08:50:37 GMT";
        assert_eq!(limited(date).as_deref(), Some("60"));
    }

    /// The limit protects the ACME library; an order may wait for longer.
    #[test]
    fn the_pause_of_an_error_is_not_limited() {
        let mut response = http::Response::builder()
            .status(429)
            .header("content-type", "application/problem+json")
            .header(RETRY_AFTER, "604800")
            .body(())
            .unwrap();
        let retry_after = RetryAfter::default();
        check(&mut response, &retry_after, UNIX_EPOCH).unwrap();
        assert_eq!(retry_after.get(), Some(Duration::from_secs(604_800)));
        assert_eq!(response.headers()[RETRY_AFTER], "86400");
        // The error of a proxy.
        response.headers_mut().remove("content-type");
        response.headers_mut().insert(RETRY_AFTER, 600.into());
        let error = check(&mut response, &retry_after, UNIX_EPOCH).unwrap_err();
        assert_eq!(error, "responds with 429 Too Many Requests");
        assert_eq!(retry_after.get(), Some(Duration::from_secs(600)));
    }
}
