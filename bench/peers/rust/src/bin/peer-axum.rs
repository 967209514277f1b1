//! `peer-axum PORT`: axum's router and extractors, served by hyper.

#![forbid(unsafe_code)]

use hyper_util::service::TowerToHyperService;

fn main() -> std::io::Result<()> {
    let service = TowerToHyperService::new(peers::axum_app::router());
    peers::tokio_http::serve(&peers::Arguments::of_program(), service)
}
