//! Verifies the certificates of clients, and remembers whose was refused: the errors of rustls do
//! not tell.

use super::authorities;
use super::error::{TlsError, TlsErrorKind};
use super::facts::Certificate;
use super::pem::Source;
use super::period::Period;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The requirements for client certificates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ClientAuth {
    /// The certificates of the accepted authorities, in DER.
    pub(super) authorities: BTreeSet<Vec<u8>>,
    pub(super) is_required: bool,
}

/// The authorities of clients.
pub(super) struct Clients {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) auth: ClientAuth,
    /// The validity of the authorities.
    pub(super) periods: Vec<Period>,
}

impl Clients {
    pub(super) fn load(
        sources: Vec<Source>,
        is_required: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Clients, TlsError> {
        let mut roots = RootCertStore::empty();
        let mut all = BTreeSet::new();
        let mut periods = Vec::new();
        for source in sources {
            let added = authorities::add(source, &mut roots, |certificate, path| {
                if !certificate.is_authority() {
                    return Err(not_an_authority(certificate));
                }
                let holder = path.map(|path| format!(" in {}", path.display()));
                let holder = holder.unwrap_or_default();
                let title = format!("the client CA {}{holder}", certificate.title());
                let consequence = "; its clients are accepted nevertheless";
                periods.push(certificate.period(title).with_consequence(consequence));
                Ok(())
            });
            all.extend(added?);
        }
        let provider = Arc::clone(provider);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if !is_required {
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|error| {
            let text = format!("client certificates cannot be verified: {error}");
            TlsError::new(TlsErrorKind::Crypto, None, text)
        })?;
        Ok(Clients {
            verifier: Arc::new(Verifier(verifier)),
            auth: ClientAuth {
                authorities: all,
                is_required,
            },
            periods,
        })
    }
}

/// Its key could sign the certificate of any client, although it is not meant to: so the owner of a
/// certificate that is listed to admit one client could admit others.
fn not_an_authority(certificate: &Certificate<'_>) -> String {
    let remedy = match certificate.issuer() {
        None => "make an authority, and sign the certificates of clients with it".to_owned(),
        Some(issuer) => format!("use the certificate of its issuer, {issuer}"),
    };
    format!(
        "holds the certificate {}, which is not an authority (basicConstraints CA:TRUE), so it \
         cannot verify clients; {remedy}",
        certificate.title()
    )
}

thread_local! {
    /// The certificate that was refused last. rustls verifies within one call, whose caller takes
    /// it.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Remembers the certificate of a client that is refused.
pub(super) fn refuse(certificate: &Certificate<'_>) {
    let issuer = certificate.issuer();
    let issuer = issuer.map_or(" (self-signed)".to_owned(), |issuer| {
        format!(", signed by {issuer}")
    });
    REFUSED.set(Some(certificate.title() + &issuer));
}

/// The certificate that this thread has just refused: its subject and its issuer.
pub(super) fn take_refused() -> Option<String> {
    REFUSED.take()
}

#[derive(Debug)]
struct Verifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now);
        verified.inspect_err(|_| {
            if let Some(certificate) = Certificate::parse(end_entity) {
                refuse(&certificate);
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.0).verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.0).verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
