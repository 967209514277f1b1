//! Serves a folder below a path of a custom server: `files [PORT] [DIR]`, then
//! `curl http://127.0.0.1:PORT/files/`.

use onrush::{Request, Response, Router, Server};
use onrush_files::{Files, FilesOptions};
use std::path::Path;

async fn home(_: Request) -> Response {
    Response::html("<!DOCTYPE html><title>Home</title><a href=\"files/\">Files</a>")
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let port = args.next().unwrap_or_else(|| "8080".to_owned());
    let dir = args.next().unwrap_or_else(|| ".".to_owned());
    let files = Files::open(Path::new(&dir), FilesOptions::default())?;
    let router = Router::new().get("/", home).any("/files/{*key}", files);
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .serve(router)
}
