//! The TLS configuration that all workers and listeners share, and its replacement at run time.

use super::challenges::{self, Challenges};
use super::client_changes::{ClientChanges, ClientWatch};
use super::client_verifier::ClientAuth;
use super::error::TlsError;
use super::facts::CertificateFacts;
use super::period::Period;
use super::suites;
use super::tickets::Resumption;
use onrush_rt::worker::Notifier;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use std::fmt;
use std::mem;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

/// Certificates, keys and settings for HTTPS.
///
/// A clone shares everything with its original: one [`replace`](TlsConfig::replace) changes all of
/// them, and a client can resume on one listener a session of another. TLS 1.3 and 1.2 are
/// supported.
///
/// # Examples
/// ```
/// use onrush::TlsConfig;
///
/// let made = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
/// let config = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem())?;
/// assert_eq!(config.certificates()[0].dns_names(), ["example.org"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Any configuration of rustls works as well:
/// ```
/// use onrush::tls::{TlsConfig, rustls};
/// use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
/// use std::sync::Arc;
///
/// let made = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
/// let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
/// let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
/// let mut server = rustls::ServerConfig::builder_with_provider(provider)
///     .with_safe_default_protocol_versions()?
///     .with_no_client_auth()
///     .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))?;
/// server.alpn_protocols = vec![b"http/1.1".to_vec()];
/// let config = TlsConfig::from(Arc::new(server));
/// # assert!(config.certificates().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TlsConfig {
    /// The engine takes the read lock once per handshake, for increments of reference counts.
    /// Readers do not wait for each other. `replace` prepares everything
    /// before it takes the write lock, and holds it while it moves a few words. The lock adds two
    /// atomic operations to a handshake with its signature and key exchange, so a structure
    /// without locks would gain nothing.
    loaded: Arc<RwLock<Loaded>>,
    client_changes: Arc<ClientChanges>,
}

/// One version of the configuration.
#[derive(Clone)]
pub(super) struct Loaded {
    pub(super) server: Arc<ServerConfig>,
    /// The same, for clients that prefer ChaCha20; see `suites`. `None` for a configuration of the
    /// user.
    pub(super) client_order: Option<Arc<ServerConfig>>,
    pub(super) certificates: Vec<CertificateFacts>,
    /// The validity of the authorities of clients.
    pub(super) client_authorities: Vec<Period>,
    /// `None` if no validation is pending.
    pub(super) challenges: Option<Arc<Challenges>>,
    /// `None` for a configuration of the user.
    pub(super) sessions: Option<Sessions>,
}

/// What a new handshake needs of the configuration.
pub(super) struct ForHandshake {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client_order: Option<Arc<ServerConfig>>,
    pub(super) challenges: Option<Arc<Challenges>>,
}

/// Which sessions clients can resume.
#[derive(Clone)]
pub(super) struct Sessions {
    pub(super) client_auth: Option<ClientAuth>,
    /// Of the certificates of `client_auth`.
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) resumption: Resumption,
    /// How many TLS 1.3 tickets a connection receives.
    pub(super) tickets: usize,
}

impl TlsConfig {
    /// Replaces the configuration with that of `other`, in all clones at once. New handshakes use
    /// the new certificates. Established connections, and handshakes in progress, keep the old
    /// ones.
    ///
    /// If the requirements for client certificates change, connections end whose client would not
    /// be admitted now: it has a certificate that no authority verifies any more, or none although
    /// one is required. The workers do that soon, one connection after the other; requests that are
    /// in progress on them are aborted.
    ///
    /// A broken file has no effect, because it is an error while `other` is made.
    ///
    /// Clients can resume the sessions that they have, as long as the requirements for client
    /// certificates stay the same. If they change, old tickets become invalid, because a resumed
    /// session does not verify the client again. For a configuration from an
    /// [`Arc<ServerConfig>`](ServerConfig), sessions are the user's choice: they belong to the
    /// `ticketer` and `session_storage` of each configuration.
    ///
    /// # Examples
    /// ```
    /// use onrush::TlsConfig;
    ///
    /// let make = || rcgen::generate_simple_self_signed(["example.org".to_owned()]);
    /// let (first, second) = (make()?, make()?);
    /// let config = TlsConfig::from_pem(first.cert.pem(), first.signing_key.serialize_pem())?;
    /// let of_server = config.clone();
    ///
    /// // Later, with a renewed certificate:
    /// let renewed = TlsConfig::from_pem(second.cert.pem(), second.signing_key.serialize_pem());
    /// match renewed {
    ///     Ok(renewed) => config.replace(renewed),
    ///     Err(error) => eprintln!("the certificate was not replaced: {error}"),
    /// }
    /// assert_eq!(of_server.certificates(), config.certificates());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(&self, other: TlsConfig) {
        let mut new = other.loaded();
        let old = self.loaded();
        let old_sessions = old.sessions;
        if let (Some(old), Some(sessions)) = (old_sessions.clone(), &mut new.sessions)
            && old.client_auth == sessions.client_auth
            && old.resumption.is_like(&sessions.resumption)
        {
            let mut server = ServerConfig::clone(&new.server);
            old.resumption.apply(&mut server, sessions.tickets);
            sessions.resumption = old.resumption;
            new.client_order = Some(Arc::new(suites::in_client_order(&server)));
            new.server = Arc::new(server);
        }
        let client_auth = |sessions: &Option<Sessions>| {
            let sessions = sessions.as_ref();
            sessions.map(|sessions| sessions.client_auth.clone())
        };
        let has_other_clients = client_auth(&old_sessions) != client_auth(&new.sessions);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        new.challenges = loaded.challenges.take();
        let old = mem::replace(&mut *loaded, new);
        drop(loaded);
        // This may free the old certificates, which takes longer than the lock should.
        drop(old);
        if has_other_clients {
            self.client_changes.count();
        }
    }

    /// The configuration of rustls for a new handshake. It has `enable_secret_extraction`.
    ///
    /// # Examples
    /// ```
    /// # use onrush::TlsConfig;
    /// # let made = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
    /// # let config = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem())?;
    /// assert_eq!(config.current().alpn_protocols[0], b"h2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn current(&self) -> Arc<ServerConfig> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&loaded.server)
    }

    /// The certificates of the server, in the order of the builder. For a configuration from an
    /// [`Arc<ServerConfig>`](ServerConfig) the list is empty, because rustls does not list them.
    pub fn certificates(&self) -> Vec<CertificateFacts> {
        self.loaded().certificates
    }

    /// Lines for the log about certificates that clients refuse at the time `now`, or will soon.
    /// They are those of [`CertificateFacts::warnings`]. There are also lines about client CAs that
    /// have expired, or will within 14 days; their clients are accepted nevertheless. A server
    /// repeats the lines, for example once a day.
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let loaded = self.loaded();
        let own = loaded.certificates.iter();
        let own = own.flat_map(|facts| facts.warnings(now));
        let authorities = loaded.client_authorities.iter();
        own.chain(authorities.filter_map(|period| period.warning(now)))
            .collect()
    }

    /// Serves a certificate for the validation of `name` by an ACME server (TLS-ALPN-01, RFC 8737),
    /// in all clones, until [`end_acme_challenges`](TlsConfig::end_acme_challenges). `certificate`
    /// and `key` are PEM; the certificate has the extension `acmeIdentifier`.
    ///
    /// Only clients that ask for `name` and offer exactly the protocol `acme-tls/1` receive it. For
    /// any other name, such a client is refused with the alert `no_application_protocol` if the
    /// configuration uses ALPN. The connection ends after the handshake.
    /// [`replace`](TlsConfig::replace) keeps the certificate.
    ///
    /// # Errors
    /// As for [`from_pem`](TlsConfig::from_pem).
    ///
    /// # Examples
    /// ```
    /// use onrush::TlsConfig;
    /// use rcgen::{CertificateParams, CustomExtension, KeyPair};
    ///
    /// # let made = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
    /// # let config = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem())?;
    /// # let digest = [0; 32];
    /// // `digest` is the SHA-256 of the key authorization.
    /// let mut params = CertificateParams::new(["example.org".to_owned()])?;
    /// params.custom_extensions = vec![CustomExtension::new_acme_identifier(&digest)];
    /// let key = KeyPair::generate()?;
    /// let certificate = params.self_signed(&key)?;
    /// config.set_acme_challenge("example.org", certificate.pem(), key.serialize_pem())?;
    /// // After the validation:
    /// config.end_acme_challenges();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_acme_challenge(
        &self,
        name: &str,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<(), TlsError> {
        let config = Arc::new(challenges::config(certificate.as_ref(), key.as_ref())?);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let challenges = loaded.challenges.get_or_insert_default();
        Arc::make_mut(challenges).insert(name.to_ascii_lowercase(), config);
        Ok(())
    }

    /// Ends all validations that [`set_acme_challenge`](TlsConfig::set_acme_challenge) has begun.
    pub fn end_acme_challenges(&self) {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.challenges = None;
    }

    pub(super) fn for_handshake(&self) -> ForHandshake {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        ForHandshake {
            server: Arc::clone(&loaded.server),
            client_order: loaded.client_order.clone(),
            challenges: loaded.challenges.clone(),
        }
    }

    /// The number of changes of the requirements for client certificates.
    pub(crate) fn client_generation(&self) -> u64 {
        self.client_changes.generation()
    }

    /// Wakes a worker after each such change, until the result is dropped.
    pub(crate) fn watch_clients(&self, worker: Notifier) -> ClientWatch {
        ClientChanges::watch(&self.client_changes, worker)
    }

    /// Whether a client with these certificates, its own first, would be admitted now. A
    /// configuration of the user cannot be asked, and admits it.
    pub(crate) fn admits(&self, certificates: &[CertificateDer<'static>]) -> bool {
        let Some(sessions) = self.loaded().sessions else {
            return true;
        };
        match (certificates, sessions.client_auth) {
            ([], auth) => !auth.is_some_and(|auth| auth.is_required),
            (_, None) => false, // What its names say is not verified any more.
            ([own, others @ ..], Some(_)) => {
                let now = UnixTime::now();
                let verified = sessions.verifier.verify_client_cert(own, others, now);
                verified.is_ok()
            }
        }
    }

    fn loaded(&self) -> Loaded {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.clone()
    }

    pub(super) fn new(loaded: Loaded) -> TlsConfig {
        TlsConfig {
            loaded: Arc::new(RwLock::new(loaded)),
            client_changes: Arc::default(),
        }
    }
}

/// Uses the configuration as it is, except that `enable_secret_extraction` is set: Onrush encrypts
/// and decrypts records itself, in place, with the keys of the handshake.
///
/// A client whose certificate has expired (by `time_provider`) cannot resume a session, whatever
/// the `ClientCertVerifier` does. If it accepts expired certificates, turn resumption off.
impl From<Arc<ServerConfig>> for TlsConfig {
    fn from(mut server: Arc<ServerConfig>) -> TlsConfig {
        if !server.enable_secret_extraction {
            let mut copy = ServerConfig::clone(&server);
            copy.enable_secret_extraction = true;
            server = Arc::new(copy);
        }
        TlsConfig::new(Loaded {
            server,
            client_order: None,
            certificates: Vec::new(),
            client_authorities: Vec::new(),
            challenges: None,
            sessions: None,
        })
    }
}

/// Without keys.
impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loaded = self.loaded();
        f.debug_struct("TlsConfig")
            .field("certificates", &loaded.certificates)
            .field("alpn_protocols", &loaded.server.alpn_protocols)
            .finish_non_exhaustive()
    }
}
