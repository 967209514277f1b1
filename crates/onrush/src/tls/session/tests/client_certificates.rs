//! Certificates of clients that are refused: the error says which, why, and what to do.

use super::peer::{Pair, TLS12, TLS13, provider};
use crate::tls::TlsConfig;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

type Issuer = CertifiedIssuer<'static, KeyPair>;

/// A certificate and its key, in PEM.
type Made = (String, String);

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn authority(name: &str) -> Issuer {
    CertifiedIssuer::self_signed(authority_params(name), KeyPair::generate().unwrap()).unwrap()
}

fn signed(issuer: &Issuer, params: &CertificateParams) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// The error of a server that accepts clients of `ca`, for a client with `certificate`.
fn refusal(ca: &Issuer, (certificate, key): &Made) -> String {
    let site = signed(ca, &params("site"));
    let server = TlsConfig::builder().certificate(&site.0, &site.1);
    let server = server.client_ca(ca.pem()).build().unwrap().current();
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let key = provider().key_provider.load_private_key(key).unwrap();
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
    let certified = CertifiedKey::new(chain.collect::<Result<_, _>>().unwrap(), key);
    let texts = [TLS12, TLS13].map(|versions| {
        let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(versions)
            .unwrap();
        let mut config = (builder.with_root_certificates(roots.clone())).with_no_client_auth();
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified.clone()));
        let mut pair = Pair::new(&Arc::new(config), ServerConfig::clone(&server));
        let hello = pair.take_sent();
        assert_eq!(pair.server.deliver(&hello).error, None);
        pair.deliver_to_client().unwrap();
        let flight = pair.take_sent();
        let error = pair.server.deliver(&flight).error.expect("a refusal");
        assert!(error.is_about_client_certificate());
        error.to_string()
    });
    assert_eq!(texts[0], texts[1]);
    texts.into_iter().next().unwrap()
}

#[test]
fn a_refusal_names_the_certificate_and_the_reason() {
    let (ca, stranger) = (authority("Clients"), authority("Stranger"));
    let intermediate = authority_params("Between");
    let key = KeyPair::generate().unwrap();
    let intermediate = CertifiedIssuer::signed_by(intermediate, key, &ca).unwrap();
    let mut expired = params("old");
    expired.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let mut early = params("young");
    early.not_before = rcgen::date_time_ymd(2500, 1, 1);
    let mut site = params("site");
    site.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let version1 = (
        include_str!("../../../../tests/tls/version1.pem").to_owned(),
        include_str!("../../../../tests/tls/p256-pkcs8.key").to_owned(),
    );
    let unknown = "has an issuer that is no client CA of this server, or the client has not sent \
                   the certificates between them";
    for (made, expected) in [
        (
            signed(&stranger, &params("bob")),
            format!("CN=bob, signed by CN=Stranger {unknown}"),
        ),
        (
            signed(&intermediate, &params("bob")),
            format!("CN=bob, signed by CN=Between {unknown}"),
        ),
        (
            signed(&ca, &expired),
            "CN=old, signed by CN=Clients expired at 2001-01-01 00:00:00 UTC, or one between it \
             and the client CA"
                .to_owned(),
        ),
        (
            signed(&ca, &early),
            "CN=young, signed by CN=Clients is not valid before 2500-01-01 00:00:00 UTC, or one \
             between it and the client CA"
                .to_owned(),
        ),
        (
            signed(&ca, &site),
            "CN=site, signed by CN=Clients has an extendedKeyUsage without clientAuth".to_owned(),
        ),
        (
            signed(&ca, &authority_params("chief")),
            "CN=chief, signed by CN=Clients is the one of an authority (CA:TRUE), which cannot be \
             a client; sign another with it"
                .to_owned(),
        ),
        (
            version1,
            "CN=old.example.org (self-signed) is X.509 version 1; sign it with extensions"
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(&ca, &made), expected);
    }
}
