//! The two smallest tests of the TechEmpower benchmarks: run `plaintext [PORT]`, then request
//! `/plaintext` and `/json`.

use onrush::{Request, Response, Router, Server};

async fn plaintext(_: Request) -> Response {
    Response::with_body("Hello, World!").content_type("text/plain")
}

/// The rules require that the object is created for each request.
async fn json(_: Request) -> Response {
    Response::json(format!(r#"{{"message":"{}"}}"#, "Hello, World!"))
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let routes = Router::new()
        .get("/plaintext", plaintext)
        .get("/json", json);
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .serve(routes)
}
