//! `peer-axum-serve PORT`: the router of `peer-axum` on `axum::serve`, as its documentation shows
//! it, with one thread of tokio.

#![forbid(unsafe_code)]

use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let address = peers::Arguments::of_program().address;
    let listener = TcpListener::from_std(peers::listen(address)?)?;
    axum::serve(listener, peers::axum_app::router()).await
}
