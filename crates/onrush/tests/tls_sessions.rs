//! What clients of a TLS configuration can resume, and what a replacement changes.

use crate::tls::{self, Authority, Client, VERSIONS, clients, provider, with};
use onrush::TlsConfig;
use onrush::tls::TlsConfigBuilder;
use onrush::tls::rustls::{Error, ProtocolVersion};
use std::fs;
use std::sync::Arc;
use std::thread;
use testing::TempDir;

#[test]
fn sessions_resume_on_every_thread_and_every_clone() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    let server = with(&site).build().unwrap();
    let other = with(&site).build().unwrap();
    for client in clients(&root, None) {
        let client = Arc::new(client);
        let is_resumed = |server: &TlsConfig| {
            let (client, server) = (Arc::clone(&client), server.clone());
            let connect = move || client.connect(&server, "example.org").unwrap().is_resumed();
            thread::spawn(connect).join().unwrap()
        };
        assert!(!is_resumed(&server), "the first has nothing to resume");
        assert!(is_resumed(&server));
        assert!(
            is_resumed(&server.clone()),
            "a resumed one has a new ticket"
        );
        assert!(!is_resumed(&other), "another configuration has other keys");
    }
}

#[test]
fn the_number_of_tickets_can_be_chosen() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    for (server, tickets) in [
        (with(&site), 1),
        (with(&site).session_tickets(3), 3),
        (with(&site).early_data(1024), 1),
        (with(&site).session_tickets(0), 0),
        (with(&site).session_tickets(0).early_data(1024), 0),
    ] {
        let server = server.build().unwrap();
        for client in clients(&root, None) {
            let mut connection = client.connect(&server, "example.org").unwrap();
            let is_tls13 = connection.client.protocol_version() == Some(ProtocolVersion::TLSv1_3);
            if is_tls13 {
                assert_eq!(connection.client.tls13_tickets_received(), tickets);
            }
            connection = client.connect(&server, "example.org").unwrap();
            assert_eq!(connection.is_resumed(), tickets > 0);
        }
    }
}

#[test]
fn a_replacement_changes_certificates_and_keeps_sessions() {
    let root = Authority::new("Root");
    let (old, new) = (root.sign(&["example.org"]), root.sign(&["example.org"]));
    for settings in [
        |builder: TlsConfigBuilder| builder,
        |builder: TlsConfigBuilder| builder.early_data(1024),
        |builder: TlsConfigBuilder| builder.session_tickets(2),
    ] {
        let server = settings(with(&old)).build().unwrap();
        let of_listener = server.clone();
        for client in clients(&root, None) {
            server.replace(settings(with(&old)).build().unwrap());
            let connect = |client: &Client| client.connect(&of_listener, "example.org").unwrap();
            let mut established = connect(&client);
            assert!(!established.is_resumed());
            assert_eq!(established.certificate(), &old.der);

            server.replace(settings(with(&new)).build().unwrap());
            assert!(connect(&client).is_resumed());
            let fresh = connect(&Client::new(root.der()));
            assert!(!fresh.is_resumed());
            assert_eq!(fresh.certificate(), &new.der);
            // A second one in a row keeps them, too.
            server.replace(settings(with(&new)).build().unwrap());
            assert!(connect(&client).is_resumed());
            assert!(established.is_alive());
        }
    }
}

#[test]
fn a_change_of_client_authentication_ends_sessions() {
    let root = Authority::new("Root");
    let (ours, theirs) = (Authority::new("Ours"), Authority::new("Theirs"));
    let site = root.sign(&["example.org"]);
    let known = ours.sign(&["alice"]);
    let free = || with(&site);
    let optional = || {
        with(&site)
            .client_ca(ours.pem())
            .client_certificates_optional()
    };
    let required = || with(&site).client_ca(ours.pem());
    let both = || with(&site).client_ca(ours.pem()).client_ca(theirs.pem());
    let same_both = || with(&site).client_ca(theirs.pem()).client_ca(ours.pem());
    let build = |builder: TlsConfigBuilder| builder.build().unwrap();
    for client in clients(&root, Some(&known)) {
        let is_resumed_after = |before: TlsConfigBuilder, after: TlsConfigBuilder| {
            let server = build(before);
            let connect = || client.connect(&server, "example.org").unwrap();
            connect();
            server.replace(build(after));
            connect().is_resumed()
        };
        assert!(is_resumed_after(free(), free()));
        assert!(is_resumed_after(optional(), optional()));
        assert!(is_resumed_after(required(), required()));
        assert!(is_resumed_after(both(), same_both()), "the order is free");
        assert!(!is_resumed_after(free(), optional()));
        assert!(!is_resumed_after(optional(), required()));
        assert!(!is_resumed_after(required(), both()));
        assert!(!is_resumed_after(both(), required()));
        assert!(!is_resumed_after(required(), free()));
    }
    // A client without a certificate cannot keep a session of a server that did not ask for one.
    for client in clients(&root, None) {
        let server = build(optional());
        client.connect(&server, "example.org").unwrap();
        server.replace(build(required()));
        let error = client.connect(&server, "example.org").err().unwrap();
        assert_eq!(error, Error::NoCertificatesPresented);
    }
}

#[test]
fn broken_files_leave_the_configuration() {
    let root = Authority::new("Root");
    let (old, new) = (root.sign(&["example.org"]), root.sign(&["example.org"]));
    let dir = TempDir::new();
    let (certificate, key) = (dir.path().join("site.pem"), dir.path().join("site.key"));
    fs::write(&certificate, &old.certificate).unwrap();
    fs::write(&key, &old.key).unwrap();
    let server = TlsConfig::from_files(&certificate, &key).unwrap();
    let reload = || TlsConfig::from_files(&certificate, &key).map(|new| server.replace(new));
    let received = || {
        let client = Client::new(root.der());
        let connection = client.connect(&server, "example.org").unwrap();
        connection.certificate().clone()
    };
    // The certificate is replaced before its key.
    fs::write(&certificate, &new.certificate).unwrap();
    reload().unwrap_err();
    assert_eq!(received(), old.der);
    fs::write(&key, "").unwrap();
    reload().unwrap_err();
    assert_eq!(received(), old.der);
    fs::write(&key, &new.key).unwrap();
    reload().unwrap();
    assert_eq!(received(), new.der);
}

/// Handshakes on two threads while another replaces the certificates: each is whole, old or new.
#[test]
fn replacements_under_load_fail_no_handshake() {
    let root = Authority::new("Root");
    let (old, new) = (root.sign(&["example.org"]), root.sign(&["example.org"]));
    let server = with(&old).build().unwrap();
    thread::scope(|scope| {
        let handshakes = [(); 2].map(|()| {
            scope.spawn(|| {
                let client = Client::new(root.der());
                for _ in 0..50 {
                    let connection = client.connect(&server, "example.org").unwrap();
                    let certificate = connection.certificate();
                    assert!([&old.der, &new.der].contains(&certificate));
                }
            })
        });
        let mut replaced = 0;
        while replaced < 2 || !handshakes.iter().all(|thread| thread.is_finished()) {
            let made = [&new, &old][replaced % 2];
            server.replace(with(made).build().unwrap());
            replaced += 1;
        }
    });
}

#[test]
fn early_data_is_accepted_once_and_only_if_configured() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    let early = |bytes: u32| {
        let server = with(&site).early_data(bytes).build().unwrap();
        let client = Client::with(root.der(), VERSIONS[0], None, provider());
        client.connect(&server, "example.org").unwrap();
        let mut second = client.connect(&server, "example.org").unwrap();
        assert!(second.is_resumed());
        assert_eq!(second.client.is_early_data_accepted(), bytes > 0);
        second.early_data()
    };
    assert_eq!(early(0), b"");
    assert_eq!(early(1024), b"early");

    // A replay of the whole first flight: the server has removed the session.
    let server = with(&site).early_data(1024).build().unwrap();
    let client = Client::with(root.der(), VERSIONS[0], None, provider());
    client.connect(&server, "example.org").unwrap();
    let flight = client.first_flight("example.org");
    assert_eq!(
        tls::early_data_in(&server, &flight),
        Some(b"early".to_vec())
    );
    assert_eq!(tls::early_data_in(&server, &flight), None);
}
