//! `peer-onrush-axum PORT`: the router of `peer-axum` on Onrush, with one worker and one thread of
//! tokio. `ONRUSH_DRIVER` selects the driver.
//!
//! With `ONRUSH_TOWER_SPAWN=1`, the other design of the crate: the service runs on the runtime, and
//! a channel carries its response to the worker.

#![forbid(unsafe_code)]

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use onrush::Server;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// Runs each request as a task of the runtime.
#[derive(Clone)]
struct Spawned(Router);

impl Service<http::Request<onrush_tower::Body>> for Spawned {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<onrush_tower::Body>) -> Self::Future {
        let request: Request = request.map(axum::body::Body::new);
        let (sender, response) = tokio::sync::oneshot::channel();
        let mut router = self.0.clone();
        tokio::spawn(async move { sender.send(router.call(request).await) });
        Box::pin(async move { response.await.expect("the task does not panic") })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let address = peers::Arguments::of_program().address;
    let server = Server::bind(address.to_string()).from_env()?.workers(1);
    let router = peers::axum_app::router();
    match std::env::var_os("ONRUSH_TOWER_SPAWN") {
        None => onrush_tower::serve(server, router).await,
        Some(_) => onrush_tower::serve(server, Spawned(router)).await,
    }
}
