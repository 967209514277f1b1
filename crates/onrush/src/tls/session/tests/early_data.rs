//! Data that the client sends before the handshake is complete.

use super::peer::{Pair, Server, TLS13, client, server};
use rustls::{AlertDescription, ServerConfig};
use std::io::Write;
use std::sync::Arc;

/// A configuration that accepts early data, and a client with a ticket for it.
fn early_data() -> (Pair, ServerConfig) {
    let mut server = server();
    server.max_early_data_size = 1024;
    let mut config = client(TLS13);
    config.enable_early_data = true;
    let config = Arc::new(config);
    Pair::new(&config, server.clone()).handshake();
    let mut pair = Pair::new(&config, server.clone());
    pair.client
        .early_data()
        .unwrap()
        .write_all(b"GET /early")
        .unwrap();
    pair.client
        .early_data()
        .unwrap()
        .write_all(b" HTTP/1.1")
        .unwrap();
    (pair, server)
}

#[test]
fn early_data_is_marked() {
    let (mut pair, _) = early_data();
    let first = pair.take_sent();
    let delivered = pair.server.deliver(&first);
    assert_eq!(delivered.early_data, b"GET /early HTTP/1.1");
    assert_eq!(delivered.data, b"");
    assert!(pair.server.session.is_handshaking());
    // Before the handshake is complete there is no key to send with.
    let Server { session, out, .. } = &mut pair.server;
    let sent = out.clone();
    assert_eq!(
        session.send(b"x", 0, out).unwrap_err().kind(),
        std::io::ErrorKind::BrokenPipe
    );
    session.close_notify(out);
    assert_eq!(*out, sent);
    let rest = pair.handshake();
    assert_eq!(rest.early_data, b"");
    assert!(pair.client.is_early_data_accepted() && pair.parts().is_resumed);
    pair.round(b"request", b"response");
}

#[test]
fn too_much_early_data_is_refused() {
    // The same tickets, but a limit that is lower than the client believes.
    let (mut pair, mut config) = early_data();
    config.max_early_data_size = 4;
    pair.server = Server::new(config);
    let first = pair.take_sent();
    assert!(pair.server.deliver(&first).error.is_some());
    let alert = AlertDescription::UnexpectedMessage;
    let received = pair.deliver_to_client();
    assert_eq!(received, Err(rustls::Error::AlertReceived(alert)));
}

/// A server without the ticket skips what it cannot decrypt (RFC 8446 §4.2.10).
#[test]
fn rejected_early_data_is_skipped() {
    for max_early_data_size in [0, 1024] {
        let (mut pair, _) = early_data();
        let mut other = server();
        other.max_early_data_size = max_early_data_size;
        pair.server = Server::new(other);
        let delivered = pair.handshake();
        assert_eq!((delivered.early_data, delivered.data), (vec![], vec![]));
        assert!(!pair.client.is_early_data_accepted());
        pair.round(b"request", b"response");
    }
}
