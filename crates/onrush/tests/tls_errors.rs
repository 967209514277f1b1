//! Every mistake in certificates, keys and settings is an error of one line.

use crate::tls::{self, Authority, fixture, read};
use onrush::TlsConfig;
use onrush::tls::rustls::pki_types::PrivateKeyDer;
use onrush::tls::rustls::pki_types::pem::PemObject;
use onrush::tls::{TlsConfigBuilder, TlsError, TlsErrorKind};
use std::fs;
use std::path::PathBuf;
use testing::TempDir;

/// A folder with files of the names that the messages contain.
struct Folder {
    dir: TempDir,
}

impl Folder {
    fn new() -> Folder {
        Folder {
            dir: TempDir::new(),
        }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Asserts the kind, the path and the text of an error, without this folder's path.
    fn assert(&self, error: &TlsError, kind: TlsErrorKind, file: &str, text: &str) {
        let folder = format!("{}/", self.dir.path().display());
        assert_eq!(error.to_string().replace(&folder, ""), text);
        assert_eq!(error.kind(), kind, "{text}");
        assert_eq!(error.path(), Some(self.path(file).as_path()), "{text}");
    }
}

fn in_memory(certificate: &[u8], key: &[u8]) -> TlsError {
    TlsConfig::from_pem(certificate, key).unwrap_err()
}

fn assert_in_memory(error: &TlsError, kind: TlsErrorKind, text: &str) {
    assert_eq!(error.to_string(), text);
    assert_eq!((error.kind(), error.path()), (kind, None), "{text}");
}

#[test]
fn every_bad_certificate_file_has_its_line() {
    let folder = Folder::new();
    let key = folder.write("site.key", read("p256-pkcs8.key"));
    let whole = String::from_utf8(read("p256.pem")).unwrap();
    let end = whole.find("-----END").unwrap();
    let cut = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    let first = &whole["-----BEGIN CERTIFICATE-----\n".len()..][..4];
    for (content, kind, text) in [
        (&b""[..], TlsErrorKind::Empty, "site.pem is empty"),
        (b" \n\r\n", TlsErrorKind::Empty, "site.pem is empty"),
        (
            b"no PEM",
            TlsErrorKind::NoCertificate,
            "site.pem holds no certificate in PEM",
        ),
        (
            b"-\0-\0-\0-\0",
            TlsErrorKind::NotPem,
            "site.pem is UTF-16 text, not PEM; convert it: iconv -f UTF-16 -t UTF-8",
        ),
        (
            &read("version1.pem"),
            TlsErrorKind::MalformedCertificate,
            "site.pem holds the certificate CN=old.example.org, which is X.509 version 1; sign it \
             with extensions, among them subjectAltName, which makes it version 3",
        ),
        (
            b"\x30\x82\x01\x02",
            TlsErrorKind::NotPem,
            "site.pem is DER or PKCS#12, not PEM; convert it with openssl x509, openssl pkey or \
             openssl pkcs12",
        ),
        (
            &whole.as_bytes()[..end],
            TlsErrorKind::MalformedPem,
            "site.pem is malformed: the section CERTIFICATE has no end",
        ),
        (
            whole.replacen(first, "????", 1).as_bytes(),
            TlsErrorKind::MalformedPem,
            "site.pem is malformed: the section CERTIFICATE is not Base64",
        ),
        (
            cut.as_bytes(),
            TlsErrorKind::MalformedCertificate,
            "site.pem is malformed: certificate 1 is not valid DER",
        ),
        (
            format!("{whole}{cut}").as_bytes(),
            TlsErrorKind::MalformedCertificate,
            "site.pem is malformed: certificate 2 is not valid DER",
        ),
    ] {
        let certificate = folder.write("site.pem", content);
        let error = TlsConfig::from_files(certificate, &key).unwrap_err();
        folder.assert(&error, kind, "site.pem", text);
    }
    let error = TlsConfig::from_files(folder.path("none.pem"), &key).unwrap_err();
    let text = "none.pem does not exist";
    folder.assert(&error, TlsErrorKind::NotFound, "none.pem", text);
    let error = TlsConfig::from_files(folder.path(""), &key).unwrap_err();
    let text = " is a folder, not a file that can be read again";
    folder.assert(&error, TlsErrorKind::NotFile, "", text);
}

/// A pipe would make the reader wait for its writer.
#[test]
fn a_pipe_is_refused() {
    let folder = Folder::new();
    let key = folder.path("site.key");
    let made = std::process::Command::new("mkfifo").arg(&key).status();
    assert!(made.unwrap().success());
    let error = TlsConfig::from_files(fixture("p256.pem"), key).unwrap_err();
    let text = "site.key is a pipe, a socket or a device, not a file that can be read again";
    folder.assert(&error, TlsErrorKind::NotFile, "site.key", text);
}

#[test]
fn other_content_is_named() {
    for (label, other) in [
        (
            "CERTIFICATE REQUEST",
            "a certificate signing request; use the certificate that the authority has made for \
             it",
        ),
        ("PKCS7", "PKCS#7; convert it: openssl pkcs7 -print_certs"),
        (
            "TRUSTED CERTIFICATE",
            "a trusted certificate of OpenSSL; convert it: openssl x509",
        ),
        ("X509 CRL", "a revocation list"),
        ("PUBLIC KEY", "a public key"),
        ("DH PARAMETERS", "the section DH PARAMETERS"),
    ] {
        let pem = format!("-----BEGIN {label}-----\nAQID\n-----END {label}-----\n");
        let error = in_memory(pem.as_bytes(), &read("p256-pkcs8.key"));
        let text = format!("the certificate holds no certificate, but {other}");
        assert_in_memory(&error, TlsErrorKind::NoCertificate, &text);
        let error = in_memory(&read("p256.pem"), pem.as_bytes());
        let text = format!("the private key holds no private key, but {other}");
        assert_in_memory(&error, TlsErrorKind::NoKey, &text);
    }
}

#[test]
fn every_bad_key_file_has_its_line() {
    let folder = Folder::new();
    let certificate = folder.write("site.pem", read("p256.pem"));
    let p256 = read("p256-pkcs8.key");
    let no_key = "-----BEGIN PRIVATE KEY-----\nMAMCAQE=\n-----END PRIVATE KEY-----\n";
    let dsa = no_key.replace("PRIVATE KEY", "DSA PRIVATE KEY");
    let supported = "supported are RSA with 2048 to 8192 bits, ECDSA on P-256, P-384 and P-521, \
                     and Ed25519";
    let encrypted = "site.key is encrypted, and a passphrase is not supported; decrypt it: \
                     openssl pkey -in site.key -out DECRYPTED";
    let unsupported = TlsErrorKind::UnsupportedKey;
    for (content, kind, text) in [
        (Vec::new(), TlsErrorKind::Empty, "site.key is empty".into()),
        (
            b"no PEM".to_vec(),
            TlsErrorKind::NoKey,
            "site.key holds no private key in PEM".into(),
        ),
        (
            read("encrypted-pkcs8.key"),
            TlsErrorKind::EncryptedKey,
            encrypted.into(),
        ),
        (
            read("encrypted-pkcs1.key"),
            TlsErrorKind::EncryptedKey,
            encrypted.into(),
        ),
        (
            [p256.clone(), read("rsa-pkcs1.key"), p256.clone()].concat(),
            TlsErrorKind::SeveralKeys,
            "site.key holds 3 private keys, not one".into(),
        ),
        (
            dsa.into_bytes(),
            unsupported,
            "site.key holds a key of the unsupported type DSA".into(),
        ),
        (
            read("rsa1024-pkcs8.key"),
            unsupported,
            format!("site.key holds an unsupported key (RSA with 1024 bits); {supported}"),
        ),
        (
            read("rsa1024-pkcs1.key"),
            unsupported,
            format!("site.key holds an unsupported key (RSA with 1024 bits); {supported}"),
        ),
        (
            read("secp256k1-sec1.key"),
            unsupported,
            format!("site.key holds an unsupported key (ECDSA on secp256k1); {supported}"),
        ),
        (
            read("ed448-pkcs8.key"),
            unsupported,
            format!("site.key holds an unsupported key (Ed448); {supported}"),
        ),
        (
            no_key.as_bytes().to_vec(),
            TlsErrorKind::MalformedKey,
            "site.key holds a malformed private key".into(),
        ),
        (
            read("p384-sec1.key"),
            TlsErrorKind::KeyMismatch,
            "site.key does not belong to the certificate CN=p256.example.org in site.pem".into(),
        ),
    ] {
        let key = folder.write("site.key", content);
        let error = TlsConfig::from_files(&certificate, key).unwrap_err();
        folder.assert(&error, kind, "site.key", &text);
    }
    let error = TlsConfig::from_files(&certificate, folder.path("none.key")).unwrap_err();
    let text = "none.key does not exist";
    folder.assert(&error, TlsErrorKind::NotFound, "none.key", text);
}

#[test]
fn swapped_files_are_named() {
    let folder = Folder::new();
    let certificate = folder.write("site.pem", read("p256.pem"));
    let key = folder.write("site.key", read("p256-pkcs8.key"));
    let error = TlsConfig::from_files(&key, &certificate).unwrap_err();
    let text = "site.key holds a private key, not a certificate; are the two files swapped?";
    folder.assert(&error, TlsErrorKind::NoCertificate, "site.key", text);
    let error = TlsConfig::from_files(&certificate, &certificate).unwrap_err();
    let text = "site.pem holds a certificate, not a private key; are the two files swapped?";
    folder.assert(&error, TlsErrorKind::NoKey, "site.pem", text);
}

#[test]
fn the_order_of_the_chain_is_checked() {
    let root = Authority::new("Root");
    let intermediate = root.intermediate("Intermediate");
    let site = intermediate.sign(&["example.org"]);
    let chain = |parts: &[&str]| TlsConfig::from_pem(parts.concat(), &site.key);
    let (leaf, middle) = (site.certificate.as_str(), intermediate.pem());
    for good in [&[leaf][..], &[leaf, &middle], &[leaf, &middle, &root.pem()]] {
        assert_eq!(chain(good).unwrap().certificates().len(), 1);
    }
    let folder = Folder::new();
    let key = folder.write("site.key", &site.key);
    for (parts, text) in [
        (
            &[&middle, leaf][..],
            "site.pem is in the wrong order: certificate 1 (CN=Intermediate) is not the one of \
             the private key, but certificate 2 (CN=example.org) is; it must be the first",
        ),
        (
            &[leaf, &root.pem(), &middle],
            "site.pem is in the wrong order: certificate 2 (CN=Root) did not sign certificate 1 \
             (CN=example.org)",
        ),
        (
            &[leaf, &middle, &middle],
            "site.pem is in the wrong order: certificate 3 (CN=Intermediate) did not sign \
             certificate 2 (CN=Intermediate)",
        ),
        (
            &[leaf, &Authority::new("Intermediate").pem()],
            "site.pem is in the wrong order: certificate 2 (CN=Intermediate) did not sign \
             certificate 1 (CN=example.org)",
        ),
    ] {
        let certificate = folder.write("site.pem", parts.concat());
        let error = TlsConfig::from_files(certificate, &key).unwrap_err();
        folder.assert(&error, TlsErrorKind::ChainOrder, "site.pem", text);
    }
}

#[test]
fn a_bad_client_authority_has_its_line() {
    let folder = Folder::new();
    let site = || TlsConfig::builder().certificate(read("p256.pem"), read("p256-pkcs8.key"));
    for (content, kind, text) in [
        (Vec::new(), TlsErrorKind::Empty, "clients.pem is empty"),
        (
            b"#".to_vec(),
            TlsErrorKind::NoCertificate,
            "clients.pem holds no certificate in PEM",
        ),
        (
            read("p256-pkcs8.key"),
            TlsErrorKind::NoCertificate,
            "clients.pem holds a private key, not a certificate",
        ),
        (
            b"-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----".to_vec(),
            TlsErrorKind::MalformedCertificate,
            "clients.pem is malformed: certificate 1 is not valid DER",
        ),
        (
            Authority::new("Clients")
                .sign(&["alice"])
                .certificate
                .into(),
            TlsErrorKind::NotAuthority,
            "clients.pem holds the certificate CN=alice, which is not an authority \
             (basicConstraints CA:TRUE), so it cannot verify clients; use the certificate of its \
             issuer, CN=Clients",
        ),
        // Its key could sign the certificate of any client.
        (
            read("p256.pem"),
            TlsErrorKind::NotAuthority,
            "clients.pem holds the certificate CN=p256.example.org, which is not an authority \
             (basicConstraints CA:TRUE), so it cannot verify clients; make an authority, and sign \
             the certificates of clients with it",
        ),
        (
            read("version1.pem"),
            TlsErrorKind::NotAuthority,
            "clients.pem holds the certificate CN=old.example.org, which is not an authority \
             (basicConstraints CA:TRUE), so it cannot verify clients; make an authority, and sign \
             the certificates of clients with it",
        ),
    ] {
        let path = folder.write("clients.pem", content);
        let error = site().client_ca_file(path).build().unwrap_err();
        folder.assert(&error, kind, "clients.pem", text);
    }
    let error = site().client_ca("").build().unwrap_err();
    assert_in_memory(&error, TlsErrorKind::Empty, "the client CA is empty");
}

#[test]
fn a_bad_ocsp_response_has_its_line() {
    let folder = Folder::new();
    let stapled = read("stapled.ocsp");
    let site = || TlsConfig::builder().certificate(read("stapled.pem"), read("p256-pkcs8.key"));
    let malformed = TlsErrorKind::MalformedOcsp;
    for (content, kind, text) in [
        (&b""[..], TlsErrorKind::Empty, "site.ocsp is empty"),
        (
            b"PEM",
            malformed,
            "site.ocsp is not an OCSP response in DER",
        ),
        (
            &stapled[..stapled.len() - 1],
            malformed,
            "site.ocsp is not an OCSP response in DER",
        ),
        (
            b"\x30\x03\x0a\x01\x06",
            malformed,
            "site.ocsp is an OCSP response without success: unauthorized",
        ),
    ] {
        let path = folder.write("site.ocsp", content);
        let error = site().ocsp_response_file(path).build().unwrap_err();
        folder.assert(&error, kind, "site.ocsp", text);
    }
    let other = TlsConfig::builder().certificate(read("p256.pem"), read("p256-pkcs8.key"));
    let error = other.ocsp_response(stapled).build().unwrap_err();
    assert_in_memory(
        &error,
        TlsErrorKind::OcspMismatch,
        "the OCSP response is about another certificate",
    );
}

#[test]
fn inputs_in_memory_are_named_by_their_role() {
    let (certificate, key) = (read("p256.pem"), read("p256-pkcs8.key"));
    let error = in_memory(b"", &key);
    assert_in_memory(&error, TlsErrorKind::Empty, "the certificate is empty");
    let error = in_memory(&certificate, b"");
    assert_in_memory(&error, TlsErrorKind::Empty, "the private key is empty");
    let error = in_memory(&key, &key);
    let text = "the certificate holds a private key, not a certificate";
    assert_in_memory(&error, TlsErrorKind::NoCertificate, text);
    let error = in_memory(&certificate, &certificate);
    let text = "the private key holds a certificate, not a private key";
    assert_in_memory(&error, TlsErrorKind::NoKey, text);
    let error = in_memory(&certificate, &read("encrypted-pkcs8.key"));
    let text = "the private key is encrypted, and a passphrase is not supported; decrypt it: \
                openssl pkey -in FILE -out DECRYPTED";
    assert_in_memory(&error, TlsErrorKind::EncryptedKey, text);
    let error = in_memory(&certificate, &read("rsa-pkcs8.key"));
    let text = "the private key does not belong to the certificate CN=p256.example.org";
    assert_in_memory(&error, TlsErrorKind::KeyMismatch, text);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let site = || TlsConfig::builder().certificate(read("p256.pem"), read("p256-pkcs8.key"));
    let long = vec![b'x'; 256];
    let cases: [(TlsConfigBuilder, &str); 6] = [
        (TlsConfig::builder(), "TLS needs a certificate"),
        (
            TlsConfig::builder()
                .ocsp_response("")
                .certificate_files("a", "b"),
            "an OCSP response must follow its certificate",
        ),
        (
            site().client_certificates_optional(),
            "optional client certificates need a client CA",
        ),
        (
            site().alpn(["http/1.1", ""]),
            "an ALPN protocol has 1 to 255 bytes",
        ),
        (site().alpn([long]), "an ALPN protocol has 1 to 255 bytes"),
        (
            TlsConfig::builder().alpn([""]).ocsp_response(""),
            "an ALPN protocol has 1 to 255 bytes",
        ),
    ];
    for (builder, text) in cases {
        let error = builder.build().unwrap_err();
        assert_in_memory(&error, TlsErrorKind::Settings, text);
    }
}

/// Keys for elliptic curves are so short that their length in DER has one byte, or two.
#[test]
fn keys_in_der_are_recognised() {
    for name in ["ed25519-pkcs8", "p256-pkcs8", "p384-sec1", "rsa-pkcs1"] {
        let pem = read(&format!("{name}.key"));
        let key = PrivateKeyDer::from_pem_slice(&pem).unwrap();
        let error = in_memory(&read("p256.pem"), key.secret_der());
        assert_eq!(error.kind(), TlsErrorKind::NotPem, "{name}: {error}");
    }
}

#[test]
fn every_form_of_a_key_is_read() {
    for (name, forms) in [
        ("rsa", &["pkcs8", "pkcs1"][..]),
        ("p256", &["pkcs8", "sec1"]),
        ("p384", &["pkcs8", "sec1"]),
        ("ed25519", &["pkcs8"]),
    ] {
        let certificate = fixture(&format!("{name}.pem"));
        for form in forms {
            let key = fixture(&format!("{name}-{form}.key"));
            let config = TlsConfig::from_files(&certificate, key).unwrap();
            let root = tls::der(&format!("{name}.pem"));
            let site = format!("{name}.example.org");
            for versions in tls::VERSIONS {
                let client = tls::Client::with(root.clone(), versions, None, tls::provider());
                let connection = client.connect(&config, &site).unwrap();
                assert_eq!(connection.certificate(), &root, "{name} {form}");
            }
            let facts = &config.certificates()[0];
            assert_eq!(facts.path(), Some(certificate.as_path()));
            assert_eq!(facts.subject(), format!("CN={site}"));
            assert_eq!(facts.dns_names(), [site]);
        }
    }
}

/// One file may hold the certificate and its key.
#[test]
fn a_combined_file_is_read() {
    let folder = Folder::new();
    let both = [read("p256-sec1.key"), read("p256.pem")].concat();
    let both = folder.write("both.pem", both);
    TlsConfig::from_files(&both, &both).unwrap();
}
