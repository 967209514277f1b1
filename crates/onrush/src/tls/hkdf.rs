//! The key derivation of TLS 1.3 (HKDF, RFC 5869) on HMAC keys that are prepared once.
//!
//! A handshake derives up to five values from each secret. `aws_lc_rs::hkdf` begins each of them
//! with the secret: it prepares the HMAC key again (two blocks of the hash), and if the secret is
//! the result of an extraction, it repeats the extraction. That is a third of the blocks that a
//! resumed handshake hashes. Here a secret is prepared once, and each value costs two blocks. HKDF
//! itself is that of rustls ([`HkdfUsingHmac`]), HMAC that of aws-lc.

use aws_lc_rs::hmac;
use rustls::Tls13CipherSuite;
use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::hmac::{Hmac, Key, Tag};
use rustls::crypto::tls13::{Hkdf, HkdfUsingHmac};

static SHA256: HkdfUsingHmac<'static> = HkdfUsingHmac(&AwsLc(hmac::HMAC_SHA256));
static SHA384: HkdfUsingHmac<'static> = HkdfUsingHmac(&AwsLc(hmac::HMAC_SHA384));

/// The suite with the derivation of this module. A suite with another hash stays as it is.
pub(super) fn with_prepared_keys(suite: &Tls13CipherSuite) -> Tls13CipherSuite {
    let CipherSuiteCommon {
        suite: name,
        hash_provider,
        confidentiality_limit,
    } = suite.common;
    Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: name,
            hash_provider,
            confidentiality_limit,
        },
        hkdf_provider: for_hash(hash_provider.output_len()).unwrap_or(suite.hkdf_provider),
        aead_alg: suite.aead_alg,
        quic: suite.quic,
    }
}

/// HKDF with the hash of this output length, in bytes.
fn for_hash(length: usize) -> Option<&'static dyn Hkdf> {
    match length {
        32 => Some(&SHA256),
        48 => Some(&SHA384),
        _ => None,
    }
}

/// HMAC of aws-lc, for rustls.
struct AwsLc(hmac::Algorithm);

impl Hmac for AwsLc {
    fn with_key(&self, key: &[u8]) -> Box<dyn Key> {
        Box::new(Prepared(hmac::Key::new(self.0, key)))
    }

    fn hash_output_len(&self) -> usize {
        self.0.tag_len()
    }
}

/// A key whose two blocks are hashed already. aws-lc erases it when it is dropped.
struct Prepared(hmac::Key);

impl Key for Prepared {
    fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(first);
        middle.iter().for_each(|part| context.update(part));
        context.update(last);
        Tag::new(context.sign().as_ref())
    }

    fn tag_len(&self) -> usize {
        self.0.algorithm().tag_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::crypto::tls13::OkmBlock;

    /// What rustls asks of HKDF, for one secret: with every length of a value.
    fn derive(hkdf: &dyn Hkdf, secret: &[u8], salt: Option<&[u8]>) -> Vec<Vec<u8>> {
        let info: [&[u8]; 3] = [b"\x00\x10", b"tls13 key", b""];
        let okm = OkmBlock::new(secret);
        let mut values = vec![hkdf.hmac_sign(&okm, b"message").as_ref().to_vec()];
        for expander in [
            hkdf.extract_from_zero_ikm(salt),
            hkdf.extract_from_secret(salt, secret),
            hkdf.expander_for_okm(&okm),
        ] {
            values.push(expander.expand_block(&info).as_ref().to_vec());
            values.push(expander.expand_block(&[]).as_ref().to_vec());
            for length in [0, 1, 12, 16, 32, 48, 200, 255 * expander.hash_len()] {
                let mut value = vec![0; length];
                expander.expand_slice(&info, &mut value).expect("a length");
                values.push(value);
            }
            let mut too_long = vec![0; 255 * expander.hash_len() + 1];
            assert!(expander.expand_slice(&info, &mut too_long).is_err());
        }
        values
    }

    #[test]
    fn every_suite_derives_what_aws_lc_derives() {
        let provider = default_provider();
        let suites = provider.cipher_suites.iter();
        let suites: Vec<_> = suites.filter_map(|suite| suite.tls13()).collect();
        assert_eq!(suites.len(), 3);
        for suite in suites {
            let ours = with_prepared_keys(suite);
            assert!(for_hash(suite.common.hash_provider.output_len()).is_some());
            let secret: Vec<u8> = (0..suite.common.hash_provider.output_len() as u8).collect();
            for salt in [None, Some(b"salt".as_slice()), Some(&[7; 200])] {
                let expected = derive(suite.hkdf_provider, &secret, salt);
                assert_eq!(derive(ours.hkdf_provider, &secret, salt), expected);
            }
        }
    }

    /// RFC 5869, appendix A.1.
    #[test]
    fn the_first_test_vector_of_the_rfc() {
        let salt: Vec<u8> = (0..=12).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let mut okm = [0; 42];
        let expander = SHA256.extract_from_secret(Some(&salt), &[0x0b; 22]);
        expander.expand_slice(&[&info], &mut okm).expect("a length");
        assert_eq!(okm[..4], [0x3c, 0xb2, 0x5f, 0x25]);
        assert_eq!(okm[38..], [0x87, 0x18, 0x58, 0x65]);
    }
}
