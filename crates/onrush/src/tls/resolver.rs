//! Chooses the certificate for a handshake by the name that the client asks for (SNI, RFC 6066,
//! section 3).

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// A certificate with its key, as it is sent.
pub(super) struct Served {
    key: Arc<CertifiedKey>,
    /// When the OCSP response of `key` ends, and what is sent after that: clients refuse a
    /// certificate with an expired response, but accept it without one.
    after_ocsp: Option<(SystemTime, Arc<CertifiedKey>)>,
}

impl Served {
    /// `ocsp_expires`: when the OCSP response in `key` ends.
    pub(super) fn new(key: CertifiedKey, ocsp_expires: Option<SystemTime>) -> Served {
        let without = || CertifiedKey {
            ocsp: None,
            ..key.clone()
        };
        Served {
            after_ocsp: ocsp_expires.map(|end| (end, Arc::new(without()))),
            key: Arc::new(key),
        }
    }

    /// What is sent at the time `now`, which costs nothing if it does not matter.
    fn at(&self, now: impl FnOnce() -> SystemTime) -> Arc<CertifiedKey> {
        let key = match &self.after_ocsp {
            Some((end, without)) if now() > *end => without,
            _ => &self.key,
        };
        Arc::clone(key)
    }
}

/// The certificates of a server, by name.
///
/// Names are the DNS names of the certificates themselves. An exact name goes before a wildcard. A
/// wildcard is the whole leftmost label and stands for exactly one label (RFC 9525, section 6.3).
/// Several certificates may have the same name, usually one with an RSA and one with an ECDSA key:
/// the first whose key can sign for the client is used.
///
/// A client that sends no name, or an unknown one, receives the first certificate. It can then
/// explain the mismatch to its user, which an alert cannot.
pub(super) struct Resolver {
    /// Certificates by exact name, in lower case.
    exact: HashMap<String, Vec<Arc<Served>>>,
    /// Certificates by the part of a wildcard name after `*.`, in lower case.
    wildcard: HashMap<String, Vec<Arc<Served>>>,
    /// The first certificate, then those that share a name with it.
    default: Vec<Arc<Served>>,
}

impl Resolver {
    /// `certificates` are in order of preference, each with its DNS names in lower case.
    pub(super) fn new<'a>(
        certificates: impl IntoIterator<Item = (Arc<Served>, &'a [String])>,
    ) -> Resolver {
        let mut resolver = Resolver {
            exact: HashMap::new(),
            wildcard: HashMap::new(),
            default: Vec::new(),
        };
        let mut first_names: Option<&[String]> = None;
        for (key, names) in certificates {
            for name in names {
                let (names, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut resolver.wildcard, parent),
                    None => (&mut resolver.exact, name.as_str()),
                };
                let keys = names.entry(name.to_owned()).or_default();
                keys.push(Arc::clone(&key));
            }
            let first_names = *first_names.get_or_insert(names);
            let is_first = resolver.default.is_empty();
            if is_first || names.iter().any(|name| first_names.contains(name)) {
                resolver.default.push(key);
            }
        }
        resolver
    }

    /// The certificate for a client that asks for `name` and verifies signatures of the types
    /// `schemes`.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Served> {
        let named = name.and_then(|name| {
            let name = match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                true => Cow::Owned(name.to_ascii_lowercase()),
                false => Cow::Borrowed(name),
            };
            let by_wildcard = || match name.split_once('.')? {
                ("", _) => None,
                (_, parent) => self.wildcard.get(parent),
            };
            self.exact.get(&*name).or_else(by_wildcard)
        });
        let keys = named.unwrap_or(&self.default);
        let usable = match keys.as_slice() {
            // The handshake checks the schemes anyway.
            [_] => None,
            several => several
                .iter()
                .find(|served| served.key.key.choose_scheme(schemes).is_some()),
        };
        usable.or(keys.first()).map(Arc::as_ref)
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let served = self.choose(hello.server_name(), hello.signature_schemes())?;
        Some(served.at(SystemTime::now))
    }
}

/// Without the chains, which are long.
impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver")
            .field("exact", &self.exact.keys())
            .field("wildcard", &self.wildcard.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
    use std::time::Duration;

    /// A certificate whose content is `tag`.
    fn certified(tag: u8, algorithm: &'static rcgen::SignatureAlgorithm) -> Arc<Served> {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = vec![CertificateDer::from(vec![tag])];
        let key = CertifiedKey::new(chain, any_supported_type(&key).unwrap());
        Arc::new(Served::new(key, None))
    }

    const P256: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
    const P384: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP384_SHA384];

    #[test]
    fn names_are_exact_before_wildcards_before_the_default() {
        let names = [
            vec!["example.org".to_owned()],
            vec!["*.example.org".to_owned()],
            vec!["www.example.org".to_owned(), "*.a.example.org".to_owned()],
        ];
        let keys = [1, 2, 3].map(|tag| certified(tag, &rcgen::PKCS_ECDSA_P256_SHA256));
        let pairs = keys.iter().cloned();
        let resolver = Resolver::new(pairs.zip(names.iter().map(Vec::as_slice)));
        for (name, tag) in [
            (None, 1),
            (Some("example.org"), 1),
            (Some("unknown.example"), 1),
            (Some("org"), 1),
            (Some(""), 1),
            (Some("*.example.org"), 2),
            (Some("mail.example.org"), 2),
            (Some("MAIL.Example.ORG"), 2),
            (Some("www.example.org"), 3),
            (Some("WWW.example.org"), 3),
            (Some("x.a.example.org"), 3),
            (Some("a.example.org"), 2),
            (Some("x.www.example.org"), 1),
            (Some(".example.org"), 1),
        ] {
            let chosen = resolver.choose(name, P256).unwrap();
            assert_eq!(chosen.key.cert[0].as_ref(), [tag], "{name:?}");
        }
    }

    #[test]
    fn of_several_keys_the_first_that_suits_the_client_is_used() {
        let name = ["example.org".to_owned()];
        let other = ["other.example".to_owned()];
        let first = certified(1, &rcgen::PKCS_ECDSA_P256_SHA256);
        let second = certified(2, &rcgen::PKCS_ECDSA_P384_SHA384);
        let third = certified(3, &rcgen::PKCS_ECDSA_P384_SHA384);
        let resolver =
            Resolver::new([(first, &name[..]), (third, &other[..]), (second, &name[..])]);
        for name in [Some("example.org"), None] {
            let tag = |schemes| resolver.choose(name, schemes).unwrap().key.cert[0][0];
            assert_eq!(tag(P256), 1);
            assert_eq!(tag(P384), 2);
            assert_eq!(tag(&[SignatureScheme::ED25519]), 1, "the handshake fails");
        }
    }

    #[test]
    fn an_ocsp_response_is_sent_until_it_expires() {
        let mut key = CertifiedKey::clone(&certified(1, &rcgen::PKCS_ED25519).key);
        key.ocsp = Some(vec![7]);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let unlimited = Served::new(key.clone(), None);
        let served = Served::new(key, Some(end));
        let later = end + Duration::from_secs(1);
        assert!(served.at(|| end).ocsp.is_some());
        assert_eq!(served.at(|| later).ocsp, None);
        assert_eq!(served.at(|| later).cert, served.at(|| end).cert);
        assert!(unlimited.at(|| panic!("the time")).ocsp.is_some());
    }
}
