//! Which cipher suite is negotiated.
//!
//! The server selects: AES-128 first. All suites are strong, but TLS_AES_256_GCM_SHA384, which most
//! clients put first, derives its keys with SHA-384. Processors accelerate SHA-256, and rarely
//! SHA-384, so the hashes alone take a fifth of a handshake.
//!
//! A client that puts ChaCha20 first does so because its processor has no instructions for AES.
//! There, ChaCha20 is several times as fast, so such a client selects.

use super::hkdf;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CipherSuite, ServerConfig, SupportedCipherSuite, Tls13CipherSuite};
use std::sync::LazyLock;

/// The suites of TLS 1.3 with our key derivation. rustls refers to suites for ever.
static TLS13: LazyLock<Vec<Tls13CipherSuite>> = LazyLock::new(|| {
    let provider = aws_lc_rs::default_provider();
    let suites = provider.cipher_suites.iter();
    suites
        .filter_map(|suite| suite.tls13().map(hkdf::with_prepared_keys))
        .collect()
});

/// aws-lc-rs with its suites in the server's order, those with AES-128 first for each version and
/// kind of key, and with the key derivation of [`hkdf`].
pub(super) fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    // The sort is stable: TLS 1.3 stays in front.
    let uses_aes128 = |suite| {
        matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    };
    let suites = &mut provider.cipher_suites;
    suites.retain(|suite| suite.tls13().is_none());
    suites.extend(TLS13.iter().map(SupportedCipherSuite::Tls13));
    suites.sort_by_key(|suite| (suite.tls13().is_none(), !uses_aes128(suite.suite())));
    provider
}

/// The same configuration, but the client selects the suite.
pub(super) fn in_client_order(server: &ServerConfig) -> ServerConfig {
    let mut server = ServerConfig::clone(server);
    server.ignore_client_order = false;
    server
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aes_128_is_first_and_nothing_is_lost() {
        let names = |provider: CryptoProvider| -> Vec<CipherSuite> {
            let suites = provider.cipher_suites.iter();
            suites.map(|suite| suite.suite()).collect()
        };
        let (ours, theirs) = (names(provider()), names(aws_lc_rs::default_provider()));
        assert_eq!(
            ours[..4],
            [
                CipherSuite::TLS13_AES_128_GCM_SHA256,
                CipherSuite::TLS13_AES_256_GCM_SHA384,
                CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
                CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            ]
        );
        assert_eq!(ours.len(), theirs.len());
        assert!(theirs.iter().all(|suite| ours.contains(suite)));
    }
}
