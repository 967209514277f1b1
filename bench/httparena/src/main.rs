//! `onrush-httparena [DATA CERTIFICATES PORT TLS_PORT]`: the endpoints of the benchmark HttpArena,
//! on the public API of Onrush. README.md says which profiles they are for.
//!
//! | argument | what it is | default |
//! | --- | --- | --- |
//! | `DATA` | a folder with `dataset.json` and the folder `static` | `/data` |
//! | `CERTIFICATES` | a folder with `server.crt` and `server.key` | `/certs` |
//! | `PORT` | where it speaks HTTP, on all IPv4 addresses; 0 for any free port | 8080 |
//! | `TLS_PORT` | the same for HTTPS | 8081 |
//!
//! `ONRUSH_WORKERS` and `ONRUSH_DRIVER` are those of `Server::from_env`. Each address is a line of
//! standard output once the server listens.

mod coding;
mod items;
mod websocket;

use items::Items;
use onrush::{IntoResponse, Limits, Request, Response, Router, Server, TlsConfig};
use onrush_files::{Files, FilesOptions};
use std::error::Error;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The longest body that the benchmark sends.
const UPLOAD_BYTES_MAX: u64 = 20 << 20;

/// The longest body that is a number.
const NUMBER_BYTES_MAX: usize = 32;

const USAGE: &str = "usage: onrush-httparena [DATA CERTIFICATES PORT TLS_PORT]";

/// Why a request gets no result.
enum Refused {
    /// The query, the path or the body is not what the endpoint is for.
    Invalid(&'static str),
    /// The body was not received.
    Body(io::Error),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Refused::Invalid(what) => (400, what).into_response(),
            Refused::Body(error) => error.into_response(),
        }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Body(error)
    }
}

/// The number that is the parameter `name` of the query, if it has one.
fn number(request: &Request, name: &str) -> Result<Option<i64>, Refused> {
    let value = request.query_pairs().get(name);
    let number = value.map(|value| value.parse()).transpose();
    number.map_err(|_| Refused::Invalid("a parameter is not an integer\n"))
}

/// The sum of the parameters `a` and `b`, and of the body if there is one.
async fn baseline(mut request: Request) -> Result<String, Refused> {
    let (a, b) = (number(&request, "a")?, number(&request, "b")?);
    let (Some(a), Some(b)) = (a, b) else {
        return Err(Refused::Invalid("the parameters are a and b\n"));
    };
    let body = match request.has_body() {
        true => read_number(&mut request).await?,
        false => 0,
    };
    let sum = a.checked_add(b).and_then(|sum| sum.checked_add(body));
    let sum = sum.ok_or(Refused::Invalid("the sum is too large\n"))?;
    Ok(sum.to_string())
}

async fn read_number(request: &mut Request) -> Result<i64, Refused> {
    let body = request.body().read_all(NUMBER_BYTES_MAX).await?;
    let number = str::from_utf8(&body)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    number.ok_or(Refused::Invalid("the body is not an integer\n"))
}

async fn pipeline(_: Request) -> &'static str {
    "ok"
}

/// The number of bytes of the body, which are received and counted in pieces.
async fn upload(mut request: Request) -> io::Result<String> {
    let mut bytes = 0;
    while let Some(piece) = request.body().next().await {
        bytes += piece?.len();
    }
    Ok(bytes.to_string())
}

/// All endpoints, with the content of the folder `data`.
fn router(data: &Path) -> io::Result<Router> {
    let options = FilesOptions {
        site: true,
        precompressed: true,
        ..FilesOptions::default()
    };
    let files = Files::open(&data.join("static"), options)?;
    Ok(Router::new()
        .get("/baseline11", baseline)
        .post("/baseline11", baseline)
        .get("/pipeline", pipeline)
        .get("/json/{count}", items::first)
        .post("/upload", upload)
        .get("/ws", websocket::echo)
        .any("/static/{*key}", files)
        .with_state(Items::read(&data.join("dataset.json"))?))
}

fn serve(data: &str, certificates: &str, port: &str, tls_port: &str) -> Result<(), Box<dyn Error>> {
    let certificates = Path::new(certificates);
    // No tickets: each connection performs a handshake of its own.
    let tls = TlsConfig::builder()
        .certificate_files(
            certificates.join("server.crt"),
            certificates.join("server.key"),
        )
        .alpn(["http/1.1"])
        .session_tickets(0)
        .build()?;
    let running = Server::bind(format!("0.0.0.0:{tls_port}"))
        .tls(tls)
        .also_bind_plain(format!("0.0.0.0:{port}"))
        .from_env()?
        .limits(Limits::default().body_bytes_max(UPLOAD_BYTES_MAX))
        .start(router(Path::new(data))?)?;
    for address in running.addresses() {
        println!("{address}");
    }
    Ok(running.wait()?)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let served = match words[..] {
        [] => serve("/data", "/certs", "8080", "8081"),
        [data, certificates, port, tls_port] => serve(data, certificates, port, tls_port),
        _ => Err(USAGE.into()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("onrush-httparena: {why}");
            ExitCode::from(2)
        }
    }
}
