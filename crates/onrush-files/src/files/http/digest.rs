//! The digests of a `PUT`, verified while the body is received: `Content-MD5` (RFC 1864),
//! `Content-Digest` and `Repr-Digest` (RFC 9530).
//!
//! A `PUT` sends a whole representation, so all three cover the same bytes: the body with its
//! content codings, without transfer codings. Digests of unknown algorithms are ignored (RFC 9530
//! §2). A malformed field is refused before the body is read.
//!
//! Hashing takes 0.2 to 4 µs per KiB. The worker hashes in steps that draw on the cooperative
//! budget, so that other connections run between them.

use crate::files::http::http_error::HttpError;
use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use md5::Md5;
use onrush::Request;
use onrush_proto::token;
use onrush_rt::coop;
use serde::{Deserialize, Serialize};
use sha2::digest::common::hazmat::SerializableState;
use sha2::{Digest, Sha256, Sha512};
use std::future::poll_fn;

/// Bytes that are hashed in one step.
const STEP_BYTES: usize = 16 * 1024;
/// The cost of a hashed byte in the cooperative budget, in received bytes.
const STEP_COST: usize = 4;

/// The form of byte sequences of structured fields (RFC 8941 §4.2.7): padding is optional.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

const MALFORMED: HttpError = HttpError::new(400, "a digest field is malformed");
pub(in crate::files) const MISMATCH: HttpError =
    HttpError::new(400, "the digest of the body does not match");

/// The digests that a body must have.
#[derive(Default)]
pub(in crate::files) struct Digests {
    hashes: Vec<Hash>,
}

/// One computation, and the result that each field demands of it.
struct Hash {
    hasher: Hasher,
    expected: [Option<Vec<u8>>; FIELDS.len()],
}

/// The fields that may hold digests.
const FIELDS: [&str; 3] = ["content-md5", "content-digest", "repr-digest"];
/// The indexes in [`FIELDS`]. The first one is the only field that is a single value.
const CONTENT_MD5: usize = 0;
const CONTENT_DIGEST: usize = 1;
const REPR_DIGEST: usize = 2;

/// A digest of a representation that arrives in several messages: the bytes so far, and the result
/// that all must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::files) struct SavedDigest {
    /// As in digest fields.
    algorithm: String,
    /// The state of the computation, in base64.
    state: String,
    /// In base64.
    expected: String,
}

pub(in crate::files) enum Hasher {
    Md5(Md5),
    /// For tus clients, which may demand it.
    Sha1(Context),
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

/// A supported algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Algorithm {
    /// Finds an algorithm by its name in digest fields (IANA: Hash Algorithms for HTTP Digest
    /// Fields). `md5` is deprecated there and ignored, as unknown algorithms are.
    pub(in crate::files) fn from_name(name: &[u8]) -> Option<Algorithm> {
        match name {
            b"sha-256" => Some(Algorithm::Sha256),
            b"sha-512" => Some(Algorithm::Sha512),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    pub(in crate::files) fn start(self) -> Hasher {
        match self {
            Algorithm::Md5 => Hasher::Md5(Md5::new()),
            Algorithm::Sha1 => Hasher::Sha1(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(Box::default()),
        }
    }
}

impl Hasher {
    fn algorithm(&self) -> Algorithm {
        match self {
            Hasher::Md5(_) => Algorithm::Md5,
            Hasher::Sha1(_) => Algorithm::Sha1,
            Hasher::Sha256(_) => Algorithm::Sha256,
            Hasher::Sha512(_) => Algorithm::Sha512,
        }
    }

    pub(in crate::files) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Md5(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub(in crate::files) fn finish(self) -> Vec<u8> {
        match self {
            Hasher::Md5(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha1(hasher) => hasher.finish().as_ref().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha512(hasher) => hasher.finalize().to_vec(),
        }
    }
}

impl Digests {
    /// The digests in the fields of a request. Fails with 400 if a field is malformed.
    pub(in crate::files) fn from_request(request: &Request) -> Result<Digests, HttpError> {
        let mut digests = Digests::default();
        for (field, name) in FIELDS.into_iter().enumerate() {
            if request.header(name).is_none() {
                continue; // Looking up one field is cheaper than a pass over all fields.
            }
            let lines = request.headers();
            let lines = lines.filter(|(have, _)| have.eq_ignore_ascii_case(name));
            for (_, value) in lines {
                match field {
                    CONTENT_MD5 => digests.add_md5(value)?,
                    _ => digests.add_dictionary(field, value)?,
                }
            }
        }
        Ok(digests)
    }

    fn add_md5(&mut self, value: &[u8]) -> Result<(), HttpError> {
        let expected = BASE64.decode(value).map_err(|_| MALFORMED)?;
        let previous = self.add_expected(Algorithm::Md5, CONTENT_MD5, expected)?;
        match previous {
            Some(_) => Err(MALFORMED), // The field is not a list.
            None => Ok(()),
        }
    }

    /// One line of a dictionary of byte sequences (RFC 8941 §3.2, RFC 9530 §2). The last member
    /// with a key replaces the earlier ones, also those of earlier lines.
    fn add_dictionary(&mut self, field: usize, value: &[u8]) -> Result<(), HttpError> {
        if value.is_empty() {
            return Ok(()); // An empty dictionary has no digests.
        }
        for member in token::list(value) {
            let (name, encoded) = parse_member(member).ok_or(MALFORMED)?;
            let expected = BASE64.decode(encoded).map_err(|_| MALFORMED)?;
            if let Some(algorithm) = Algorithm::from_name(name) {
                self.add_expected(algorithm, field, expected)?;
            }
        }
        Ok(())
    }

    /// Adds the result that a field demands, and returns the one that the field demanded before.
    fn add_expected(
        &mut self,
        algorithm: Algorithm,
        field: usize,
        expected: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, HttpError> {
        if expected.len() != algorithm.bytes() {
            return Err(MALFORMED);
        }
        let mut hashes = self.hashes.iter();
        let known = hashes.position(|hash| hash.hasher.algorithm() == algorithm);
        let index = known.unwrap_or_else(|| {
            self.hashes.push(Hash {
                hasher: algorithm.start(),
                expected: Default::default(),
            });
            self.hashes.len() - 1
        });
        Ok(self.hashes[index].expected[field].replace(expected))
    }

    /// Hashes the next bytes of the body. Other connections run between the steps.
    pub(in crate::files) async fn update(&mut self, bytes: &[u8]) {
        for hash in &mut self.hashes {
            for step in bytes.chunks(STEP_BYTES) {
                poll_fn(coop::poll_proceed).await;
                hash.hasher.update(step);
                coop::spend(step.len() * STEP_COST);
            }
        }
    }

    /// Separates the digests of the content of a message from those of the whole representation.
    pub(in crate::files) fn split(self) -> (Digests, Digests) {
        let of = |fields: &[usize]| {
            let hashes = self.hashes.iter().filter_map(|hash| {
                let mut expected = [const { None }; FIELDS.len()];
                fields
                    .iter()
                    .for_each(|&field| expected[field] = hash.expected[field].clone());
                let hasher = hash.hasher.algorithm().start();
                let is_used = expected.iter().any(Option::is_some);
                is_used.then_some(Hash { hasher, expected })
            });
            Digests {
                hashes: hashes.collect(),
            }
        };
        (of(&[CONTENT_MD5, CONTENT_DIGEST]), of(&[REPR_DIGEST]))
    }

    /// Whether nothing is verified.
    pub(in crate::files) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Adds the demand that the representation has this digest. `None`: its length is wrong, or a
    /// field demands another one.
    pub(in crate::files) fn demand(&mut self, algorithm: Algorithm, digest: Vec<u8>) -> Option<()> {
        let before = self.add_expected(algorithm, REPR_DIGEST, digest.clone());
        (before.ok()?.is_none_or(|before| before == digest)).then_some(())
    }

    /// What continues these digests, which are those of a representation, after the present bytes.
    pub(in crate::files) fn save(&self) -> Vec<SavedDigest> {
        let save = |hash: &Hash| {
            let (algorithm, state) = match &hash.hasher {
                Hasher::Sha256(hasher) => ("sha-256", hasher.serialize().to_vec()),
                Hasher::Sha512(hasher) => ("sha-512", hasher.serialize().to_vec()),
                Hasher::Md5(_) | Hasher::Sha1(_) => return None, // Not of representations.
            };
            Some(SavedDigest {
                algorithm: algorithm.to_owned(),
                state: BASE64.encode(state),
                expected: BASE64.encode(hash.expected[REPR_DIGEST].as_ref()?),
            })
        };
        self.hashes.iter().filter_map(save).collect()
    }

    /// The digests that [`Digests::save`] has saved. `None` if they are not valid.
    pub(in crate::files) fn restore(saved: &[SavedDigest]) -> Option<Digests> {
        let restore = |saved: &SavedDigest| {
            let state = BASE64.decode(&saved.state).ok()?;
            let hasher = match Algorithm::from_name(saved.algorithm.as_bytes())? {
                Algorithm::Sha256 => {
                    let state = state.as_slice().try_into().ok()?;
                    Hasher::Sha256(Sha256::deserialize(state).ok()?)
                }
                Algorithm::Sha512 => {
                    let state = state.as_slice().try_into().ok()?;
                    Hasher::Sha512(Box::new(Sha512::deserialize(state).ok()?))
                }
                Algorithm::Md5 | Algorithm::Sha1 => return None,
            };
            let mut expected = [const { None }; FIELDS.len()];
            expected[REPR_DIGEST] = Some(BASE64.decode(&saved.expected).ok()?);
            Some(Hash { hasher, expected })
        };
        let hashes = saved.iter().map(restore).collect::<Option<Vec<Hash>>>()?;
        Some(Digests { hashes })
    }

    /// Verifies the digests of all bytes so far. Fails with 400 on a mismatch.
    pub(in crate::files) fn check(self) -> Result<(), HttpError> {
        for Hash { hasher, expected } in self.hashes {
            let found = hasher.finish();
            if expected.iter().flatten().any(|expected| *expected != found) {
                return Err(MISMATCH);
            }
        }
        Ok(())
    }
}

/// The name and the encoded bytes of a member `name=:base64:`, without parameters. `None` if it is
/// malformed.
fn parse_member(member: &[u8]) -> Option<(&[u8], &[u8])> {
    let equals = member.iter().position(|&byte| byte == b'=')?;
    let (name, value) = (&member[..equals], &member[equals + 1..]);
    let is_start = |byte: u8| byte.is_ascii_lowercase() || byte == b'*';
    let is_key = |byte: u8| is_start(byte) || byte.is_ascii_digit() || b"_-.".contains(&byte);
    if !is_start(*name.first()?) || !name.iter().all(|&byte| is_key(byte)) {
        return None;
    }
    let value = value.strip_prefix(b":")?;
    let end = value.iter().position(|&byte| byte == b':')?;
    let parameters = &value[end + 1..];
    (parameters.is_empty() || parameters.starts_with(b";")).then_some((name, &value[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush::{Limits, Response, sim::Simulation};
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    const MD5: &str = "XUFAKrxLKna5cZ2REBfFkg==";
    const SHA_256: &str = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";
    const SHA_512: &str = "sha-512=:m3HSJL1i83hdltRq0+o9czGb+8KJDKra4t/3JRlnPKcjI8PZm6XBHXx6zG4U\
        uMXaDEZjR1wuXDre9G9zvN7AQw==:";

    /// The status for a body with these `Content-MD5` lines, and one dictionary field for each
    /// group of lines; 0 for a malformed field.
    fn check_digests(md5: &[&str], dictionaries: &[&str], body: &[u8]) -> u16 {
        check_fields(md5, &[dictionaries], body)
    }

    fn check_fields(md5: &[&str], fields: &[&[&str]], body: &[u8]) -> u16 {
        let mut digests = Digests::default();
        let seen = md5
            .iter()
            .try_for_each(|value| digests.add_md5(value.as_bytes()));
        let seen = seen.and_then(|()| {
            let fields = fields.iter().zip(CONTENT_MD5 + 1..);
            let mut lines =
                fields.flat_map(|(lines, field)| lines.iter().map(move |&l| (field, l)));
            lines.try_for_each(|(field, line)| digests.add_dictionary(field, line.as_bytes()))
        });
        if let Err(failure) = seen {
            assert_eq!(failure, MALFORMED);
            return 0;
        }
        for piece in body.chunks(2) {
            let mut update = pin!(digests.update(piece));
            let mut cx = Context::from_waker(Waker::noop());
            assert_eq!(update.as_mut().poll(&mut cx), Poll::Ready(()));
        }
        digests
            .check()
            .map_or_else(|failure| failure.status, |()| 200)
    }

    #[test]
    fn digests_are_of_the_whole_body() {
        let all = format!("{SHA_256}, {SHA_512}");
        for (md5, dictionaries) in [
            (&[][..], &[][..]),
            (&[MD5], &[]),
            (&[], &[SHA_256]),
            (&[], &[SHA_512]),
            (&[MD5], &[&all[..], SHA_256]),
            (&[MD5], &["", "crc32c=:AAAAAA==:, unixsum=:AA==:;q=1"]),
            (&[], &["md5=:AAAAAAAAAAAAAAAAAAAAAA==:"]),
            (&[], &[""]),
        ] {
            assert_eq!(
                check_digests(md5, dictionaries, b"hello"),
                200,
                "{dictionaries:?}"
            );
            if !md5.is_empty() || dictionaries.iter().any(|value| value.contains("sha-")) {
                assert_eq!(check_digests(md5, dictionaries, b"hellO"), 400);
                assert_eq!(check_digests(md5, dictionaries, b""), 400);
            }
        }
        let unpadded = SHA_256
            .replace("=:", ":")
            .replacen("sha-256:", "sha-256=:", 1);
        assert_eq!(check_digests(&[], &[&unpadded], b"hello"), 200);
        let other = SHA_256.replace("LPJ", "LPK");
        let both = check_fields(&[], &[&[SHA_256], &[&other]], b"hello");
        assert_eq!(both, 400, "both fields must hold");
        for (first, last, status) in [(SHA_256, &other[..], 400), (&other[..], SHA_256, 200)] {
            let one_line = format!("{first}, {last}");
            assert_eq!(
                check_digests(&[], &[&one_line], b"hello"),
                status,
                "the last one"
            );
            assert_eq!(
                check_digests(&[], &[first, last], b"hello"),
                status,
                "the last one"
            );
        }
        let empty = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";
        assert_eq!(check_digests(&[], &[empty], b""), 200);
    }

    #[test]
    fn other_tasks_run_while_a_large_body_is_hashed() {
        const BYTES: usize = 1 << 20;
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        let handler = move |_: Request| {
            let counted = counted.clone();
            async move {
                let mut digests = Digests::default();
                for field in [SHA_256, SHA_512] {
                    digests.add_dictionary(1, field.as_bytes()).expect("good");
                }
                let body = vec![0; BYTES];
                let mut update = pin!(digests.update(&body));
                poll_fn(|cx| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    update.as_mut().poll(cx)
                })
                .await;
                Response::new(204)
            }
        };
        let mut sim = Simulation::new(1, &handler, Limits::default());
        let client = sim.connect();
        let request = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        let mut sent = 0;
        while !client.at_end() {
            sent += client.send(&request[sent..]).unwrap_or(0);
            sim.run();
            let _ = client.receive();
        }
        // There are two algorithms.
        let polls_min = 2 * BYTES * STEP_COST / coop::BYTES as usize;
        let polls = polls.load(Ordering::Relaxed);
        assert!(
            polls >= polls_min,
            "{polls} polls, expected at least {polls_min}"
        );
    }

    #[test]
    fn malformed_digests_are_refused() {
        for md5 in [
            "",
            "x",
            "XUFAKrxLKna5cZ2REBfF",
            "XUFAKrxLKna5cZ2REBfFkg== x",
        ] {
            assert_eq!(check_digests(&[md5], &[], b"hello"), 0, "{md5}");
        }
        assert_eq!(check_digests(&[MD5, MD5], &[], b"hello"), 0, "two lines");
        for dictionary in [
            "sha-256",
            "sha-256=",
            "sha-256=x",
            "sha-256=:AAAA:",
            "sha-256=:*:",
            "sha-256=\"LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=\"",
            "SHA-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:",
            "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=",
            "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:x",
            "=:AAAA:",
            "a=:AAAA:,,b=:AAAA:",
            "other=1",
            ",",
        ] {
            assert_eq!(
                check_digests(&[], &[dictionary], b"hello"),
                0,
                "{dictionary}"
            );
        }
    }
}
