//! HTTP/1 of hyper on one thread of tokio, for the servers on hyper and axum.

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::runtime::Builder;

/// Serves until the process ends. Fails if it cannot listen on `address`.
pub fn serve<S>(address: SocketAddr, service: S) -> io::Result<()>
where
    S: HttpService<Incoming> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::ResBody: Send + 'static,
    <S::ResBody as hyper::body::Body>::Data: Send,
    <S::ResBody as hyper::body::Body>::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let runtime = Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(crate::listen(address)?)?;
        let mut http = http1::Builder::new();
        http.pipeline_flush(true);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let connection = http.serve_connection(TokioIo::new(stream), service.clone());
                    // The client causes its errors.
                    tokio::spawn(async move { drop(connection.await) });
                }
                Err(error) => eprintln!("accept: {error}"),
            }
        }
    })
}
