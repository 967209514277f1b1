//! `peer-actix-web PORT`: actix-web with one worker. It accepts on a separate thread.
//! `--tls-cert FILE --tls-key FILE` makes it an HTTPS server with rustls.

#![forbid(unsafe_code)]

use actix_web::http::KeepAlive;
use actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use actix_web::web::{self, Bytes};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, rt};
use peers::{BYTES, ECHO_BYTES_MAX, HELLO, MESSAGE, TEXT};
use std::io;
use std::time::Duration;

async fn hello() -> HttpResponse {
    let kind = HeaderValue::from_static(TEXT);
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, kind))
        .body(HELLO)
}

async fn json() -> HttpResponse {
    HttpResponse::Ok().json(MESSAGE)
}

async fn echo(request: HttpRequest, body: Bytes) -> HttpResponse {
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    let kind = kind.unwrap_or(HeaderValue::from_static(BYTES));
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, kind))
        .body(body)
}

fn main() -> io::Result<()> {
    let arguments = peers::Arguments::of_program();
    rt::System::new().block_on(async {
        let routes = || {
            App::new()
                .app_data(web::PayloadConfig::new(ECHO_BYTES_MAX))
                .route("/", web::get().to(hello))
                .route("/json", web::get().to(json))
                .route("/echo", web::post().to(echo))
        };
        // The default of 5 s would close idle connections during the measurement.
        let server = HttpServer::new(routes)
            .workers(1)
            .keep_alive(KeepAlive::Timeout(Duration::from_secs(75)))
            .client_request_timeout(Duration::from_secs(15));
        let listener = peers::listen(arguments.address)?;
        let server = match &arguments.certificate {
            None => server.listen(listener)?,
            Some((chain, key)) => {
                server.listen_rustls_0_23(listener, peers::tls::config(chain, key)?)?
            }
        };
        server.run().await
    })
}
