//! Serves HTTPS, and reports the TLS session of each request.
//!
//! `cargo run -p onrush --features tls --example tls -- cert.pem key.pem [client-ca.pem]`
//!
//! A certificate for a first try:
//! `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost
//! -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem`, then
//! `curl --cacert cert.pem https://localhost:8443/`.

use onrush::tls::TlsConfig;
use onrush::{Request, Response, Server};
use std::error::Error;

async fn describe(request: Request) -> Response {
    let Some(tls) = request.tls() else {
        return Response::text("not encrypted\n");
    };
    let client = tls.client().and_then(|client| client.common_name());
    Response::text(format!(
        "{} with {}, resumed: {}, client: {}\n",
        tls.version(),
        tls.cipher_suite(),
        tls.is_resumed(),
        client.unwrap_or("unknown"),
    ))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tls = match &arguments[..] {
        [certificate, key] => TlsConfig::from_files(certificate, key)?,
        [certificate, key, client_ca] => TlsConfig::builder()
            .certificate_files(certificate, key)
            .client_ca_file(client_ca)
            .build()?,
        _ => return Err("usage: tls CERTIFICATE KEY [CLIENT_CA]".into()),
    };
    Server::bind("127.0.0.1:8443")
        .also_bind_plain("127.0.0.1:8080")
        .tls(tls)
        .from_env()?
        .serve(describe)?;
    Ok(())
}
