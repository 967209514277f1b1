//! HTTPS: certificates, keys and settings of TLS, by [rustls] with aws-lc-rs.
//!
//! [`TlsConfig`] is what a server needs. It is made from PEM, by a [builder](TlsConfigBuilder), or
//! from any [`rustls::ServerConfig`], and can be replaced while the server runs. Mistakes in
//! certificates and keys are errors when the configuration is made, and each [`TlsError`] is one
//! line with the name of the file.
//!
//! TLS 1.3 and 1.2 are supported. rustls has no renegotiation, no compression, and no cipher suite
//! without forward secrecy.
//!
//! ```
//! use onrush::TlsConfig;
//! use std::time::SystemTime;
//!
//! let made = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
//! let config = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem())?;
//! for warning in config.warnings(SystemTime::now()) {
//!     eprintln!("{warning}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Modules, lowest first: `der` · `error`, `period` · `facts`, `pem` · `warnings` · `chain`, `ocsp`,
// `resolver`, `suites` (their order), `tickets` · `authorities`, `challenges`, `client_changes` ·
// `client_verifier` · `config` · `builder` · `info` · `record` (protection of records) ·
// `next_keys` (key updates) · `outgoing` (sending) · `message` (handshake messages after the
// handshake) · `client_hello` (server name, first suite) · `received` (results) · `traffic` (an
// established connection) · `handshake` · `session`.

mod authorities;
mod builder;
mod chain;
mod challenges;
mod client_changes;
mod client_hello;
mod client_verifier;
mod config;
mod der;
mod error;
mod facts;
mod handshake;
mod hkdf;
mod info;
mod message;
mod next_keys;
mod ocsp;
mod outgoing;
mod pem;
mod period;
mod received;
mod record;
mod resolver;
pub(crate) mod session;
mod suites;
mod tickets;
mod traffic;
mod warnings;

pub use authorities::read_authorities;
pub use builder::TlsConfigBuilder;
pub(crate) use challenges::ACME_TLS;
pub use config::TlsConfig;
pub use error::{TlsError, TlsErrorKind};
pub use facts::{CertificateFacts, SubjectName};
pub use info::{ClientIdentity, TlsInfo};
/// The version of rustls in this crate's API.
pub use rustls;
