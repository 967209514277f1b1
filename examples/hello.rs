//! The smallest server: `hello [PORT]`, then `curl http://127.0.0.1:PORT/`.

use onrush::{Request, Response, Server};

async fn hello(_: Request) -> Response {
    Response::text("Hello, World!")
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .serve(hello)
}
