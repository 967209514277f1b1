//! `onrush-app PORT [--tls-cert FILE --tls-key FILE]`: the responses with which Onrush and its
//! peers are measured, over TLS if there is a certificate. It uses only the public API of Onrush,
//! as a user of the crate does.
//!
//! | variable | values | default |
//! | --- | --- | --- |
//! | `ONRUSH_WORKERS`, `ONRUSH_DRIVER` | see `Server::from_env` | |
//! | `APP_ACCESS_LOG` | `off`; `text` or `json`, to stderr | `off` |
//! | `APP_METRICS` | `on`, `off` | `off` |
//! | `APP_TIME_LIMITS` | `on`: those of `Limits`; `off`: none | `on` |
//!
//! `onrush-app --features` prints the features that these variables switch, one name per line.

#![forbid(unsafe_code)]

use onrush::tls::TlsConfig;
use onrush::{AccessLog, Limits, Metrics, Request, RequestBody, Response, Server};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

/// The features that `--features` prints.
const FEATURES: [&str; 3] = ["access-log", "metrics", "time-limits"];

/// The longest body of an echo.
const ECHO_BYTES_MAX: usize = 1 << 20;

const USAGE: &str = "usage: onrush-app PORT [--tls-cert FILE --tls-key FILE] | --features";

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

async fn route(mut request: Request) -> Response {
    match (request.method(), request.path()) {
        ("GET", "/") => Response::text("Hello, World!"),
        ("GET", "/json") => json(),
        ("POST", "/echo") => {
            let kind = request.header("Content-Type").map(<[u8]>::to_vec);
            let length = request.content_length();
            match read(request.body(), length).await {
                Ok(body) => echoed(body, kind),
                Err(error) => refused(&error),
            }
        }
        _ => Response::new(404),
    }
}

fn json() -> Response {
    let message = Message {
        message: "Hello, World!",
    };
    Response::json(serde_json::to_vec(&message).expect("a struct of strings is always JSON"))
}

/// Reads a body. One of known length is received directly into memory of that size.
async fn read(body: &mut RequestBody, length: Option<u64>) -> io::Result<Vec<u8>> {
    let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else {
        return body.read_all(ECHO_BYTES_MAX).await;
    };
    // The server has already rejected longer bodies.
    let mut all = Vec::with_capacity(length.min(ECHO_BYTES_MAX));
    body.fill_whole(&mut all).await?;
    Ok(all)
}

fn echoed(body: Vec<u8>, kind: Option<Vec<u8>>) -> Response {
    let mut response = Response::with_body(body);
    match kind {
        // A value that was valid in the request is valid in the response.
        Some(kind) if response.try_set_header("Content-Type", &kind).is_ok() => response,
        _ => response.content_type("application/octet-stream"),
    }
}

fn refused(error: &io::Error) -> Response {
    Response::new(match error.kind() {
        ErrorKind::FileTooLarge => 413,
        ErrorKind::TimedOut => 408,
        _ => 400,
    })
}

/// The files of a certificate chain and its key.
type Certificate<'a> = (&'a str, &'a str);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let served = match words[..] {
        ["--features"] => {
            FEATURES.iter().for_each(|name| println!("{name}"));
            Ok(())
        }
        [port] => serve(port, None),
        [port, "--tls-cert", chain, "--tls-key", key] => serve(port, Some((chain, key))),
        _ => Err(USAGE.to_owned()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("onrush-app: {why}");
            ExitCode::from(2)
        }
    }
}

fn serve(port: &str, certificate: Option<Certificate<'_>>) -> Result<(), String> {
    let port: u16 = port.parse().map_err(|_| format!("not a port: {port}"))?;
    let access_log = access_log(&variable("APP_ACCESS_LOG", "off"))?;
    let limits = limits(&variable("APP_TIME_LIMITS", "on"))?;
    let measure = |server: Server| match &*variable("APP_METRICS", "off") {
        "off" => Ok(server),
        "on" => Ok(server.metrics(&Metrics::new())),
        other => Err(format!("APP_METRICS: not on or off: {other}")),
    };
    let server = Server::bind(format!("127.0.0.1:{port}")).from_env();
    let server = measure(server.map_err(|error| error.to_string())?)?;
    with_tls(server, certificate)?
        .limits(limits)
        .access_log(access_log)
        .serve(route)
        .map_err(|error| error.to_string())
}

/// Makes it an HTTPS server if there is a certificate.
fn with_tls(server: Server, certificate: Option<Certificate<'_>>) -> Result<Server, String> {
    match certificate {
        None => Ok(server),
        Some((chain, key)) => {
            let config = TlsConfig::from_files(chain, key).map_err(|error| error.to_string())?;
            Ok(server.tls(config))
        }
    }
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// The setting of the access log. Installs a subscriber that prints its events in this form.
fn access_log(form: &str) -> Result<AccessLog, String> {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let registry = tracing_subscriber::registry();
    let registry = registry.with(Targets::new().with_default(LevelFilter::INFO));
    let set = match form {
        "off" => return Ok(AccessLog::Off),
        "text" => tracing::subscriber::set_global_default(registry.with(layer.with_ansi(false))),
        "json" => tracing::subscriber::set_global_default(registry.with(layer.json())),
        _ => return Err(format!("APP_ACCESS_LOG: not off, text or json: {form}")),
    };
    set.map_err(|error| error.to_string())?;
    Ok(AccessLog::On)
}

fn limits(time_limits: &str) -> Result<Limits, String> {
    let on = Limits::default().body_bytes_max(ECHO_BYTES_MAX as u64);
    match time_limits {
        "on" => Ok(on),
        // The linger limit remains: it is not a part of a request, and clients may lose their
        // response without it.
        "off" => Ok(on
            .head_timeout(Duration::ZERO)
            .body_timeout(Duration::ZERO)
            .write_timeout(Duration::ZERO)
            .idle_timeout(Duration::ZERO)
            .total_timeout(Duration::ZERO)),
        _ => Err(format!("APP_TIME_LIMITS: not on or off: {time_limits}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_invalid_setting() {
        let wrong = |why: String, name: &str| assert!(why.starts_with(name), "{why}");
        wrong(limits("maybe").unwrap_err(), "APP_TIME_LIMITS: ");
        wrong(access_log("xml").unwrap_err(), "APP_ACCESS_LOG: ");
        wrong(serve("http", None).unwrap_err(), "not a port");
        assert_eq!(access_log("off"), Ok(AccessLog::Off));
    }

    #[test]
    fn size_limits_remain_without_time_limits() {
        let (on, off) = (limits("on").unwrap(), limits("off").unwrap());
        assert_eq!([off.idle_timeout, off.total_timeout], [Duration::ZERO; 2]);
        assert_eq!(off.body_bytes_max, on.body_bytes_max);
        assert!(on.idle_timeout > Duration::ZERO);
    }

    #[test]
    fn an_echo_keeps_its_type() {
        let typed = echoed(b"x".to_vec(), Some(b"a/b".to_vec()));
        assert_eq!(typed.header("content-type"), Some(&b"a/b"[..]));
        let untyped = echoed(b"x".to_vec(), None);
        let kind = untyped.header("content-type");
        assert_eq!(kind, Some(&b"application/octet-stream"[..]));
    }
}
