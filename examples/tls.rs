//! Serves HTTPS, and reports the TLS session of each request.
//!
//! `cargo run -p onrush --features tls --example tls -- 8443 cert.pem key.pem [client-ca.pem]`
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
    // With a client CA, rustls has verified the certificate before the first request.
    let client = tls
        .client()
        .map_or("no certificate", |client| client.subject());
    Response::text(format!(
        "{} with {}, resumed: {}, client: {}\n",
        tls.version(),
        tls.cipher_suite(),
        tls.is_resumed(),
        client,
    ))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (port, tls) = match &arguments[..] {
        [port, certificate, key] => (port, TlsConfig::from_files(certificate, key)?),
        [port, certificate, key, client_ca] => {
            let builder = TlsConfig::builder().certificate_files(certificate, key);
            (port, builder.client_ca_file(client_ca).build()?)
        }
        _ => return Err("usage: tls PORT CERTIFICATE KEY [CLIENT_CA]".into()),
    };
    Server::bind(format!("127.0.0.1:{port}"))
        .tls(tls)
        .from_env()?
        .serve(describe)?;
    Ok(())
}
