//! The TLS configuration in handshakes: which certificate a client receives, which clients are
//! accepted, and what else is negotiated.

use crate::tls::{self, Authority, Client, VERSIONS, clients, der, fixture, provider, read, with};
use onrush::TlsConfig;
use onrush::tls::rustls::pki_types::CertificateDer;
use onrush::tls::rustls::{AlertDescription, Error, ProtocolVersion, ServerConfig};
use std::sync::Arc;

/// The certificate that a client receives for `name`, whether or not it is valid for that name.
fn received(root: &Authority, server: &TlsConfig, name: &str) -> CertificateDer<'static> {
    let client = Client::new(root.der()).change(tls::accept_any_name);
    client.connect(server, name).unwrap().certificate().clone()
}

#[test]
fn the_certificate_is_chosen_by_name() {
    let root = Authority::new("Root");
    let first = root.sign(&["first.example", "*.first.example"]);
    let second = root.sign(&["second.example", "www.first.example"]);
    let third = root.sign(&["*.Third.example", "127.0.0.1"]);
    let server = with(&first)
        .certificate(&second.certificate, &second.key)
        .certificate(&third.certificate, &third.key)
        .build()
        .unwrap();
    for (name, expected) in [
        ("first.example", &first),
        ("mail.first.example", &first),
        ("www.first.example", &second),
        ("second.example", &second),
        ("SECOND.example", &second),
        ("www.second.example", &first),
        ("a.third.example", &third),
        ("A.THIRD.EXAMPLE", &third),
        ("a.b.third.example", &first),
        ("third.example", &first),
        ("unknown.example", &first),
        // A client sends no name for an IP address (RFC 6066, section 3).
        ("127.0.0.1", &first),
        ("::1", &first),
    ] {
        assert_eq!(received(&root, &server, name), expected.der, "{name}");
    }
    let client = Client::new(root.der())
        .change(tls::accept_any_name)
        .change(|client| client.enable_sni = false);
    let connection = client.connect(&server, "second.example").unwrap();
    assert_eq!(connection.certificate(), &first.der);
    let names: Vec<String> = server
        .certificates()
        .iter()
        .map(|facts| facts.dns_names().join(" "))
        .collect();
    assert_eq!(
        names,
        [
            "first.example *.first.example",
            "second.example www.first.example",
            "*.third.example"
        ]
    );
}

/// Clients verify the names themselves, too.
#[test]
fn clients_accept_the_chosen_certificate() {
    let root = Authority::new("Root");
    let intermediate = root.intermediate("Intermediate");
    let site = intermediate.sign(&["example.org", "*.example.org"]);
    let chain = [site.certificate, intermediate.pem()].concat();
    let server = TlsConfig::from_pem(chain, &site.key).unwrap();
    for client in clients(&root, None) {
        for name in ["example.org", "www.example.org"] {
            let connection = client.connect(&server, name).unwrap();
            assert_eq!(connection.certificate(), &site.der);
        }
        assert!(client.connect(&server, "example.com").is_err());
    }
}

#[test]
fn clients_without_ecdsa_receive_the_rsa_certificate_of_a_name() {
    let root = Authority::new("Root");
    let ecdsa = root.sign(&["rsa.example.org"]);
    let server = with(&ecdsa)
        .certificate(read("rsa.pem"), read("rsa-pkcs1.key"))
        .build()
        .unwrap();
    let connection = Client::new(root.der()).connect(&server, "rsa.example.org");
    assert_eq!(connection.unwrap().certificate(), &ecdsa.der);
    let client = Client::new(der("rsa.pem")).change(tls::only_rsa);
    let connection = client.connect(&server, "rsa.example.org").unwrap();
    assert_eq!(connection.certificate(), &der("rsa.pem"));
}

#[test]
fn client_certificates_are_required_or_optional() {
    let root = Authority::new("Root");
    let (ours, theirs) = (Authority::new("Ours"), Authority::new("Theirs"));
    let site = root.sign(&["example.org"]);
    let (known, unknown) = (ours.sign(&["alice"]), theirs.sign(&["mallory"]));
    let required = with(&site).client_ca(ours.pem()).build().unwrap();
    let optional = with(&site)
        .client_ca(ours.pem())
        .client_certificates_optional()
        .build()
        .unwrap();
    for (server, is_optional) in [(&required, false), (&optional, true)] {
        for client in clients(&root, Some(&known)) {
            let connection = client.connect(server, "example.org").unwrap();
            let presented = connection.server.peer_certificates().unwrap();
            assert_eq!(presented, std::slice::from_ref(&known.der));
        }
        for client in clients(&root, Some(&unknown)) {
            let error = client.connect(server, "example.org").err().unwrap();
            assert!(matches!(error, Error::InvalidCertificate(_)), "{error:?}");
        }
        for client in clients(&root, None) {
            match client.connect(server, "example.org") {
                Ok(connection) => {
                    assert!(is_optional);
                    assert_eq!(connection.server.peer_certificates(), None);
                }
                Err(error) => {
                    assert!(!is_optional);
                    assert_eq!(error, Error::NoCertificatesPresented);
                }
            }
        }
    }
    // Several calls add authorities, and a PEM may have several.
    let both = [ours.pem(), theirs.pem()].concat();
    for server in [
        with(&site).client_ca(both),
        with(&site).client_ca(ours.pem()).client_ca(theirs.pem()),
    ] {
        let server = server.build().unwrap();
        let client = Client::with(root.der(), VERSIONS[0], Some(&unknown), provider());
        assert!(client.connect(&server, "example.org").is_ok());
    }
}

#[test]
fn alpn_selects_the_preferred_protocol_or_refuses() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    let both = |client: Client| {
        client.change(|client| {
            client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        })
    };
    let only_old = |client: Client| {
        client.change(|client| {
            client.alpn_protocols = vec![b"http/0.9".to_vec()];
        })
    };
    for (server, protocol) in [
        (with(&site), Some(&b"h2"[..])),
        (with(&site).alpn(["h2", "http/1.1"]), Some(b"h2")),
        (with(&site).alpn(["http/1.1", "h2"]), Some(b"http/1.1")),
        (with(&site).alpn([""; 0]), None),
    ] {
        let server = server.build().unwrap();
        for client in clients(&root, None).map(both) {
            let connection = client.connect(&server, "example.org").unwrap();
            assert_eq!(connection.server.alpn_protocol(), protocol);
        }
        for client in clients(&root, None).map(only_old) {
            let refused = client.connect(&server, "example.org").err();
            let alert = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
            assert_eq!(refused.is_some(), protocol.is_some());
            assert!(
                refused.is_none_or(|error| error == Error::NoApplicationProtocol || error == alert)
            );
        }
    }
}

#[test]
fn tls_1_2_can_be_refused() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    let server = with(&site).tls13_only().build().unwrap();
    let [newer, older] = clients(&root, None);
    let connection = newer.connect(&server, "example.org").unwrap();
    let version = connection.server.protocol_version();
    assert_eq!(version, Some(ProtocolVersion::TLSv1_3));
    assert!(older.connect(&server, "example.org").is_err());
}

#[test]
fn ocsp_responses_are_stapled_to_their_certificates() {
    let root = Authority::new("Root");
    let other = root.sign(&["other.example.org"]);
    let response = read("stapled.ocsp");
    let server = TlsConfig::builder()
        .certificate(read("stapled.pem"), read("p256-sec1.key"))
        .ocsp_response_file(fixture("stapled.ocsp"))
        .certificate(&other.certificate, &other.key)
        .build()
        .unwrap();
    for (name, root, expected) in [
        ("stapled.example.org", der("ca.pem"), &response[..]),
        ("other.example.org", root.der(), b""),
    ] {
        for versions in VERSIONS {
            let seen = tls::ocsp_received(&server, name, root.clone(), versions);
            assert_eq!(seen, expected, "{name}");
        }
    }
    let facts = server.certificates();
    let expires = facts[0].ocsp_expires().unwrap();
    assert_eq!(facts[1].ocsp_expires(), None);
    assert!(expires < facts[1].not_after());

    let unlimited = TlsConfig::builder()
        .certificate(read("stapled.pem"), read("p256-sec1.key"))
        .ocsp_response(read("stapled-unlimited.ocsp"))
        .build()
        .unwrap();
    assert_eq!(unlimited.certificates()[0].ocsp_expires(), None);
}

#[test]
fn a_configuration_of_rustls_is_used_as_it_is() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    let mut rustls = ServerConfig::clone(&with(&site).build().unwrap().current());
    assert!(rustls.enable_secret_extraction, "the engine needs it");
    rustls.enable_secret_extraction = false;
    rustls.alpn_protocols = vec![b"h2".to_vec()];
    rustls.send_tls13_tickets = 5;
    let rustls = Arc::new(rustls);
    let server = TlsConfig::from(Arc::clone(&rustls));
    assert!(server.current().enable_secret_extraction);
    assert!(!rustls.enable_secret_extraction, "the user's is unchanged");
    assert_eq!(server.certificates(), []);
    let client = Client::with(root.der(), VERSIONS[0], None, provider());
    let client = client.change(|client| client.alpn_protocols = vec![b"h2".to_vec()]);
    let connection = client.connect(&server, "example.org").unwrap();
    assert_eq!(connection.server.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(connection.client.tls13_tickets_received(), 5);

    // It has its own ticketer, and keeps it in both directions of a replacement.
    let builtin = with(&site).build().unwrap();
    server.replace(builtin.clone());
    let connection = client.connect(&server, "example.org").unwrap();
    assert!(!Arc::ptr_eq(&server.current().ticketer, &rustls.ticketer));
    assert!(Arc::ptr_eq(
        &server.current().ticketer,
        &builtin.current().ticketer
    ));
    drop(connection);
    server.replace(TlsConfig::from(Arc::clone(&rustls)));
    assert!(Arc::ptr_eq(&server.current().ticketer, &rustls.ticketer));
}

#[test]
fn secrets_are_not_printed() {
    let config = TlsConfig::from_pem(read("p256.pem"), read("p256-pkcs8.key")).unwrap();
    let builder = TlsConfig::builder().certificate(read("p256.pem"), "secret");
    let (config, builder) = (format!("{config:?}"), format!("{builder:?}"));
    assert!(
        config.contains("p256.example.org") && config.len() < 600,
        "{config}"
    );
    assert!(!builder.contains("115, 101, 99"), "{builder}");
}

#[test]
fn a_configuration_belongs_to_all_threads() {
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    is_shared::<TlsConfig>();
}
