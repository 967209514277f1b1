//! HTTP/1 or HTTP/2 of hyper on one thread of tokio, for the servers on hyper and axum.

use crate::Arguments;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::error::Error;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_rustls::TlsAcceptor;

/// What hyper needs of a service in a task of tokio, over either version of HTTP.
pub trait Service:
    HttpService<
        Incoming,
        Future: Send + 'static,
        Error: Into<Box<dyn Error + Send + Sync>>,
        ResBody: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    > + Clone
    + Send
    + 'static
{
}

impl<S> Service for S where
    S: HttpService<
            Incoming,
            Future: Send + 'static,
            Error: Into<Box<dyn Error + Send + Sync>>,
            ResBody: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
        > + Clone
        + Send
        + 'static
{
}

/// Serves until the process ends. Fails if it cannot listen on the address, or if the certificate
/// is unusable.
pub fn serve(arguments: &Arguments, service: impl Service) -> io::Result<()> {
    let tls = match &arguments.certificate {
        Some((chain, key)) => Some(crate::tls::config(chain, key, arguments.http2)?),
        None => None,
    };
    let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(crate::listen(arguments.address)?)?;
        let http2 = arguments.http2;
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    eprintln!("accept: {error}");
                    continue;
                }
            };
            let service = service.clone();
            match tls.clone() {
                None => {
                    tokio::spawn(connection(stream, service, http2));
                }
                Some(tls) => {
                    tokio::spawn(async move {
                        if let Ok(stream) = tls.accept(stream).await {
                            connection(stream, service, http2).await;
                        }
                    });
                }
            }
        }
    })
}

/// Serves one connection. The client causes its errors.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: impl Service,
    is_http2: bool,
) {
    let stream = TokioIo::new(stream);
    if is_http2 {
        let http = http2::Builder::new(TokioExecutor::new());
        drop(http.serve_connection(stream, service).await);
    } else {
        let mut http = http1::Builder::new();
        http.pipeline_flush(true);
        drop(http.serve_connection(stream, service).await);
    }
}
