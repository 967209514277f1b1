//! HTTPS of the engine below an application: requests, what was negotiated, and WebSocket.

use crate::same::drivers;
use axum::extract::WebSocketUpgrade;
use axum::extract::ws::WebSocket;
use axum::routing::{any, get};
use axum::{Extension, Router};
use onrush::tls::rustls::crypto::aws_lc_rs;
use onrush::tls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use onrush::tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use onrush::{Server, TlsConfig, TlsInfo};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use tungstenite::Message;

type Secure = StreamOwned<ClientConnection, TcpStream>;

fn app() -> Router {
    async fn version(Extension(tls): Extension<Arc<TlsInfo>>) -> String {
        format!("{:?}", tls.version())
    }
    async fn repeat(mut socket: WebSocket) {
        while let Some(Ok(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                return;
            }
        }
    }
    let chat = |upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(repeat) };
    Router::new()
        .route("/", get(version))
        .route("/chat", any(chat))
}

fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> Secure {
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(config.clone(), name).expect("a client");
    // Without a time limit, signals interrupt no read. The watchdog ends a test that hangs.
    StreamOwned::new(connection, TcpStream::connect(address).expect("a server"))
}

#[test]
fn an_application_over_https() {
    let _dog = testing::watchdog("an_application_over_https");
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let pem = (made.cert.pem(), made.signing_key.serialize_pem());
    let mut roots = RootCertStore::empty();
    let der = CertificateDer::from_pem_slice(pem.0.as_bytes()).expect("a certificate");
    roots.add(der).expect("a certificate");
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Arc::new(client);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _context = runtime.enter();
    for driver in drivers() {
        let tls = TlsConfig::from_pem(&pem.0, &pem.1).expect("valid");
        let server = Server::bind("127.0.0.1:0")
            .workers(1)
            .driver(driver)
            .tls(tls);
        let running = onrush_tower::serve(server, app()).start().expect("started");
        let address = running.address().to_string().parse().expect("an address");

        let mut stream = secure(address, &client);
        let ask = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(ask).expect("sent");
        let mut received = String::new();
        stream
            .read_to_string(&mut received)
            .expect("an orderly end");
        assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
        assert!(
            received.contains("1.3") || received.contains("1_3"),
            "{received}"
        );

        let (mut socket, response) =
            tungstenite::client("wss://localhost/chat", secure(address, &client))
                .expect("a socket");
        assert_eq!(response.status(), 101);
        for size in [1, 1000, 300_000] {
            let said = Message::from(vec![b'w'; size]);
            socket.send(said.clone()).expect("sent");
            assert_eq!(socket.read().expect("a message"), said);
        }
        socket.close(None).expect("closing");
        while socket.read().is_ok() {}
        running.handle().shutdown();
        running.wait().expect("no worker failed");
    }
}
