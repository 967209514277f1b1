//! The protection of TLS records: AEAD, nonces, sequence numbers and padding.
//!
//! A [`Sealer`] encrypts the records of one direction in the send buffer, an [`Opener`] decrypts
//! those of the other direction in the receive buffer. Neither allocates. TLS 1.3 is RFC 8446 §5.2
//! and §5.3. For TLS 1.2, the records of AES-GCM are RFC 5288 and RFC 5246 §6.2.3.3, and those of
//! ChaCha20-Poly1305 are RFC 7905.
//!
//! | | nonce | additional data | inner content type |
//! | --- | --- | --- | --- |
//! | TLS 1.3 | IV XOR sequence number | header | yes |
//! | TLS 1.2, AES-GCM | salt, explicit part in the record | sequence number, type, version, length | |
//! | TLS 1.2, ChaCha20 | IV XOR sequence number | sequence number, type, version, length | |
//!
//! The module knows nothing about messages and alerts.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{CipherSuite, ConnectionTrafficSecrets, ContentType, ProtocolVersion};
use std::fmt;
use std::ops::Range;

/// The bytes of a record's header: type, version and length.
pub(super) const HEADER_BYTES: usize = 5;
/// The most bytes of content in one record (RFC 8446 §5.1).
pub(super) const PLAINTEXT_MAX: usize = 1 << 14;
/// The version in the header of each protected record: that of TLS 1.2, in TLS 1.3 as well.
pub(super) const RECORD_VERSION: [u8; 2] = [3, 3];
/// The most bytes that protection adds to the content of a record that is sent.
pub(super) const OVERHEAD_MAX: usize = HEADER_BYTES + EXPLICIT_NONCE_BYTES + 1 + TAG_BYTES;

const TAG_BYTES: usize = 16;
/// The part of the nonce that each record of TLS 1.2 with AES-GCM contains (RFC 5288 §3).
const EXPLICIT_NONCE_BYTES: usize = 8;

/// Whether the records of this cipher suite can be protected.
pub(super) fn is_supported(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

/// The header of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) content: ContentType,
    pub(super) version: [u8; 2],
    /// The bytes behind the header.
    pub(super) length: usize,
}

impl Header {
    /// `None` if `input` is shorter than a header.
    #[inline]
    pub(super) fn parse(input: &[u8]) -> Option<Header> {
        let &[content, major, minor, high, low] = input.first_chunk::<HEADER_BYTES>()?;
        Some(Header {
            content: ContentType::from(content),
            version: [major, minor],
            length: usize::from(u16::from_be_bytes([high, low])),
        })
    }

    /// The bytes of the whole record.
    #[inline]
    pub(super) fn record_bytes(&self) -> usize {
        HEADER_BYTES + self.length
    }
}

/// How a version and its cipher suite protect a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Format {
    Tls13,
    Tls12Gcm,
    Tls12ChaCha20,
}

/// A record cannot be protected: the sequence numbers of the key are used up, or aws-lc failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SealError;

/// Why a record is not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OpenError {
    /// The record is too short for its tag, or was changed, or has another key.
    BadRecordMac,
    /// The content is longer than [`PLAINTEXT_MAX`].
    Overflow,
    /// A record of TLS 1.3 consists of padding only.
    NoContentType,
    /// The sequence numbers of the key are used up.
    Exhausted,
}

/// The key of one direction.
struct RecordKey {
    key: LessSafeKey,
    /// For AES-GCM with TLS 1.2: the salt, and the start of the explicit part of our nonces. That
    /// part is the peer's choice in received records.
    iv: [u8; NONCE_LEN],
    sequence: u64,
    format: Format,
}

impl RecordKey {
    /// Takes the secrets of rustls. `sequence` is the number of the next record. `None` for an
    /// algorithm that this module does not support.
    fn new(
        version: ProtocolVersion,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<RecordKey> {
        let (algorithm, key, iv, tls12) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
                (&aead::AES_128_GCM, key, iv, Format::Tls12Gcm)
            }
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
                (&aead::AES_256_GCM, key, iv, Format::Tls12Gcm)
            }
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&aead::CHACHA20_POLY1305, key, iv, Format::Tls12ChaCha20)
            }
            _ => return None,
        };
        let format = match version {
            ProtocolVersion::TLSv1_3 => Format::Tls13,
            ProtocolVersion::TLSv1_2 => tls12,
            _ => return None,
        };
        Some(RecordKey {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?),
            iv: iv.as_ref().try_into().ok()?,
            sequence,
            format,
        })
    }

    #[inline]
    fn explicit_nonce_bytes(&self) -> usize {
        match self.format {
            Format::Tls12Gcm => EXPLICIT_NONCE_BYTES,
            Format::Tls13 | Format::Tls12ChaCha20 => 0,
        }
    }

    /// IV XOR sequence number, so no nonce is used twice with one key. The explicit part of
    /// TLS 1.2 with AES-GCM may be any unique number.
    #[inline]
    fn nonce(&self) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        for (byte, of_sequence) in nonce[NONCE_LEN - sequence.len()..].iter_mut().zip(sequence) {
            *byte ^= of_sequence;
        }
        nonce
    }

    /// The additional data of TLS 1.2 for `length` bytes of content (RFC 5246 §6.2.3.3).
    #[inline]
    fn additional_data_12(&self, content: ContentType, length: usize) -> [u8; 13] {
        let mut data = [0; 13];
        data[..8].copy_from_slice(&self.sequence.to_be_bytes());
        data[8] = content.into();
        data[9..11].copy_from_slice(&RECORD_VERSION);
        data[11..].copy_from_slice(&(length as u16).to_be_bytes());
        data
    }

    /// Accounts for one record. The last number is never used, so the counter cannot wrap.
    #[inline]
    fn advance(&mut self) {
        self.sequence += 1;
    }

    #[inline]
    fn is_exhausted(&self) -> bool {
        self.sequence == u64::MAX
    }
}

/// Encrypts the records that are sent.
pub(super) struct Sealer(RecordKey);

impl Sealer {
    /// See [`RecordKey::new`].
    pub(super) fn new(
        version: ProtocolVersion,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<Sealer> {
        RecordKey::new(version, sequence, secrets).map(Sealer)
    }

    /// The number of the next record.
    #[inline]
    pub(super) fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Begins a record at the end of `out`; returns where it begins. The caller appends the
    /// content, then calls [`seal`](Sealer::seal).
    #[inline]
    pub(super) fn begin(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        let prefix = [0; HEADER_BYTES + EXPLICIT_NONCE_BYTES];
        out.extend_from_slice(&prefix[..HEADER_BYTES + self.0.explicit_nonce_bytes()]);
        start
    }

    /// Where the content of a record that begins at `start` begins.
    #[inline]
    pub(super) fn content_start(&self, start: usize) -> usize {
        start + HEADER_BYTES + self.0.explicit_nonce_bytes()
    }

    /// Protects the record that begins at `start`. Its content extends to the end of `out`, and is
    /// at most [`PLAINTEXT_MAX`] bytes.
    ///
    /// # Errors
    /// [`SealError`]. Then the record is removed from `out`, because its content is not encrypted.
    #[inline]
    pub(super) fn seal(
        &mut self,
        content: ContentType,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let sealed = self.protect(content, start, out);
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed
    }

    #[inline]
    fn protect(
        &mut self,
        content: ContentType,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let content_start = self.content_start(start);
        let key = &mut self.0;
        let content_bytes = out.len() - content_start;
        if key.is_exhausted() || content_bytes > PLAINTEXT_MAX {
            return Err(SealError);
        }
        let outer = match key.format {
            Format::Tls13 => {
                out.push(content.into());
                ContentType::ApplicationData
            }
            Format::Tls12Gcm | Format::Tls12ChaCha20 => content,
        };
        let length = out.len() + TAG_BYTES - (start + HEADER_BYTES);
        let [high, low] = (length as u16).to_be_bytes();
        let [major, minor] = RECORD_VERSION;
        let header = [outer.into(), major, minor, high, low];
        out[start..start + HEADER_BYTES].copy_from_slice(&header);
        let nonce = key.nonce();
        let tag = match key.format {
            Format::Tls13 => seal_in_place(key, nonce, &header, &mut out[content_start..]),
            Format::Tls12Gcm | Format::Tls12ChaCha20 => {
                let explicit = &mut out[start + HEADER_BYTES..content_start];
                explicit.copy_from_slice(&nonce[NONCE_LEN - explicit.len()..]);
                let data = key.additional_data_12(content, content_bytes);
                seal_in_place(key, nonce, &data, &mut out[content_start..])
            }
        }?;
        out.extend_from_slice(tag.as_ref());
        key.advance();
        Ok(())
    }
}

#[inline]
fn seal_in_place(
    key: &RecordKey,
    nonce: [u8; NONCE_LEN],
    additional_data: &[u8],
    content: &mut [u8],
) -> Result<aead::Tag, SealError> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = (key.key).seal_in_place_separate_tag(nonce, Aad::from(additional_data), content);
    tag.map_err(|_| SealError)
}

/// Decrypts the records that are received.
pub(super) struct Opener(RecordKey);

impl Opener {
    /// See [`RecordKey::new`].
    pub(super) fn new(
        version: ProtocolVersion,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<Opener> {
        RecordKey::new(version, sequence, secrets).map(Opener)
    }

    /// Decrypts `record` in place: a header with [`RECORD_VERSION`] and all bytes of its length.
    /// Returns the content type, and where the content is in `record`.
    ///
    /// # Errors
    /// [`OpenError`]. Then the bytes of `record` are unspecified, and the connection must end.
    #[inline]
    pub(super) fn open(
        &mut self,
        record: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), OpenError> {
        let key = &mut self.0;
        if key.is_exhausted() {
            return Err(OpenError::Exhausted);
        }
        let start = HEADER_BYTES + key.explicit_nonce_bytes();
        let Some(content_bytes) = record.len().checked_sub(start + TAG_BYTES) else {
            return Err(OpenError::BadRecordMac);
        };
        let (prefix, protected) = record.split_at_mut(start);
        let outer = ContentType::from(prefix[0]);
        let mut nonce = key.nonce();
        let opened = match key.format {
            Format::Tls13 => open_in_place(key, nonce, prefix, protected),
            Format::Tls12Gcm | Format::Tls12ChaCha20 => {
                let explicit = &prefix[HEADER_BYTES..];
                nonce[NONCE_LEN - explicit.len()..].copy_from_slice(explicit);
                let data = key.additional_data_12(outer, content_bytes);
                open_in_place(key, nonce, &data, protected)
            }
        };
        opened?;
        key.advance();
        match key.format {
            Format::Tls13 => {
                // The encoded TLSInnerPlaintext: the content, its type and the padding.
                if content_bytes > PLAINTEXT_MAX + 1 {
                    return Err(OpenError::Overflow);
                }
                let inner = &record[start..start + content_bytes];
                let last = inner.iter().rposition(|&byte| byte != 0);
                let last = last.ok_or(OpenError::NoContentType)?;
                Ok((ContentType::from(inner[last]), start..start + last))
            }
            Format::Tls12Gcm | Format::Tls12ChaCha20 if content_bytes > PLAINTEXT_MAX => {
                Err(OpenError::Overflow)
            }
            Format::Tls12Gcm | Format::Tls12ChaCha20 => Ok((outer, start..start + content_bytes)),
        }
    }
}

#[inline]
fn open_in_place(
    key: &RecordKey,
    nonce: [u8; NONCE_LEN],
    additional_data: &[u8],
    protected: &mut [u8],
) -> Result<(), OpenError> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = (key.key).open_in_place(nonce, Aad::from(additional_data), protected);
    opened.map(|_| ()).map_err(|_| OpenError::BadRecordMac)
}

/// Without the key.
impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKey")
            .field("format", &self.format)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealer").field(&self.0).finish()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Opener").field(&self.0).finish()
    }
}
