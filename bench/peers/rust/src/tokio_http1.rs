//! HTTP/1 of hyper on one thread of tokio, for the servers on hyper and axum.

use crate::Arguments;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_rustls::TlsAcceptor;

/// Serves until the process ends. Fails if it cannot listen on the address, or if the certificate
/// is unusable.
pub fn serve<S>(arguments: &Arguments, service: S) -> io::Result<()>
where
    S: HttpService<Incoming> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Send + 'static,
    <S::ResBody as Body>::Data: Send,
    <S::ResBody as Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let tls = match &arguments.certificate {
        Some((chain, key)) => Some(crate::tls::config(chain, key)?),
        None => None,
    };
    let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(crate::listen(arguments.address)?)?;
        let mut http = http1::Builder::new();
        http.pipeline_flush(true);
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    eprintln!("accept: {error}");
                    continue;
                }
            };
            let (http, service) = (http.clone(), service.clone());
            // The client causes the errors of a connection.
            match tls.clone() {
                None => {
                    let connection = http.serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(async move { drop(connection.await) });
                }
                Some(tls) => {
                    tokio::spawn(async move {
                        if let Ok(stream) = tls.accept(stream).await {
                            let stream = TokioIo::new(stream);
                            drop(http.serve_connection(stream, service).await);
                        }
                    });
                }
            }
        }
    })
}
