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

/// Serves until the process ends. Fails if it cannot listen on the address, or if the certificate
/// is unusable.
pub fn serve<S>(arguments: &Arguments, service: S) -> io::Result<()>
where
    S: HttpService<Incoming> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Send + 'static,
    <S::ResBody as Body>::Data: Send + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
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
async fn connection<S>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
    is_http2: bool,
) where
    S: HttpService<Incoming> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Send + 'static,
    <S::ResBody as Body>::Data: Send + 'static,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
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
