//! URLs that are signed: they give the rights of a user for one path, method and time.
//!
//! The query of a signed URL is `onrush-user=…&onrush-expires=…&onrush-signature=…`, in any order
//! and with nothing else. The signature is an HMAC-SHA-256 with the key of the user over the
//! method, the time, the user and the decoded path. The key is in the users file, so a removed user
//! revokes all URLs. A URL gives at most the rights that its user has when it is used.

use crate::files::path::ResolvedPath;
use crate::rights::{PathRights, Rights};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use std::fmt;

/// The length of a key in bytes.
const KEY_BYTES: usize = 32;

/// The key of a user for signatures.
#[derive(Clone)]
pub struct SigningKey(hmac::Key);

/// Without the key.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// Reads a key of 32 bytes in base64url.
    pub fn parse(text: &str) -> Result<SigningKey, String> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
        let bytes = bytes.filter(|bytes| bytes.len() == KEY_BYTES);
        let bytes = bytes.ok_or("the signing-key is not 32 bytes in base64url")?;
        Ok(SigningKey(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// What a signed URL permits. `GET` includes `HEAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant<'g> {
    pub(crate) method: &'g str,
    pub(crate) user: &'g str,
    /// Seconds since 1970.
    pub(crate) expires_s: u64,
    /// Decoded, as in [`ResolvedPath`].
    pub(crate) key: &'g [u8],
    pub(crate) is_folder: bool,
}

impl Grant<'_> {
    /// The signed bytes. The path is last, because only it may contain any byte.
    fn message(&self) -> Vec<u8> {
        let Grant {
            method,
            user,
            expires_s,
            ..
        } = self;
        let mut message = format!("onrush-url-1\n{method}\n{expires_s}\n{user}\n/").into_bytes();
        message.extend_from_slice(self.key);
        if self.is_folder && !self.key.is_empty() {
            message.push(b'/');
        }
        message
    }
}

/// The query of a signed URL. `path` is that of the URL, percent-encoded. Fails if it is invalid.
pub fn sign_query(
    signing_key: &SigningKey,
    user: &str,
    method: &str,
    path: &str,
    expires_s: u64,
) -> Result<String, &'static str> {
    let ResolvedPath {
        whole, is_folder, ..
    } = ResolvedPath::parse(path).map_err(|error| error.detail())?;
    let grant = Grant {
        method,
        user,
        expires_s,
        key: &whole,
        is_folder,
    };
    let signature = hmac::sign(&signing_key.0, &grant.message());
    let signature = BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref());
    let user: String = user.bytes().map(encoded).collect();
    Ok(format!(
        "onrush-user={user}&onrush-expires={expires_s}&onrush-signature={signature}"
    ))
}

/// The right that a request of `method` for `path` needs, if a user with `rights` does not have it.
/// `path` is percent-encoded. Fails if it is invalid.
pub fn missing_right(
    rights: &PathRights,
    method: &str,
    path: &str,
) -> Result<Option<Rights>, &'static str> {
    let ResolvedPath {
        whole, is_folder, ..
    } = ResolvedPath::parse(path).map_err(|error| error.detail())?;
    let needed = Rights::needed(method, is_folder);
    Ok(Some(needed).filter(|needed| !rights.at(&whole).contains(*needed)))
}

fn encoded(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).into(),
        _ => format!("%{byte:02X}"),
    }
}

/// The parameters of a signed URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SignedQuery {
    pub(crate) user: String,
    pub(crate) expires_s: u64,
    signature: Vec<u8>,
}

impl SignedQuery {
    /// `None` if no parameter is one of a signed URL. Fails if there is any other parameter, or one
    /// is missing, malformed or repeated.
    pub(crate) fn parse(query: &str) -> Option<Result<SignedQuery, &'static str>> {
        let is_signed = query.split('&').any(|pair| pair.starts_with("onrush-"));
        is_signed.then(|| SignedQuery::parse_all(query))
    }

    fn parse_all(query: &str) -> Result<SignedQuery, &'static str> {
        let (mut user, mut expires_s, mut signature) = (None, None, None);
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_repeated = match name {
                "onrush-user" => {
                    let bytes = crate::files::path::decode_query(value).ok();
                    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                    user.replace(text.ok_or(MALFORMED)?).is_some()
                }
                "onrush-expires" => {
                    let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
                    let number = value.parse().ok().filter(|_| is_plain);
                    expires_s.replace(number.ok_or(MALFORMED)?).is_some()
                }
                "onrush-signature" => {
                    let bytes = BASE64_URL_SAFE_NO_PAD.decode(value);
                    signature.replace(bytes.map_err(|_| MALFORMED)?).is_some()
                }
                _ => return Err("a signed URL has no other parameters"),
            };
            if is_repeated {
                return Err("a parameter of the signed URL is repeated");
            }
        }
        match (user, expires_s, signature) {
            (Some(user), Some(expires_s), Some(signature)) => Ok(SignedQuery {
                user,
                expires_s,
                signature,
            }),
            _ => Err(MALFORMED),
        }
    }

    /// The signature of a request, to be compared with the keys of users.
    pub(crate) fn signature(&self, method: &str, path: &ResolvedPath<'_>) -> Signature {
        let grant = Grant {
            method: if method == "HEAD" { "GET" } else { method },
            user: &self.user,
            expires_s: self.expires_s,
            key: &path.whole,
            is_folder: path.is_folder,
        };
        Signature {
            message: grant.message(),
            signature: self.signature.clone(),
            expires_s: self.expires_s,
        }
    }
}

/// A signature with what it signs.
pub(crate) struct Signature {
    message: Vec<u8>,
    signature: Vec<u8>,
    expires_s: u64,
}

impl Signature {
    /// Whether it is that of a key, and the time is not over.
    pub(crate) fn is_valid(&self, signing_key: &SigningKey, now_s: u64) -> bool {
        now_s < self.expires_s && self.is_by(signing_key)
    }

    /// Whether it is that of a key. The comparison takes constant time.
    pub(crate) fn is_by(&self, signing_key: &SigningKey) -> bool {
        hmac::verify(&signing_key.0, &self.message, &self.signature).is_ok()
    }
}

const MALFORMED: &str = "a parameter of the signed URL is missing or malformed";

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SigningKey {
        SigningKey::parse(&BASE64_URL_SAFE_NO_PAD.encode([byte; 32])).unwrap()
    }

    #[test]
    fn a_signature_is_valid_for_one_method_path_user_and_time() {
        let query = sign_query(&key(1), "ann", "GET", "/a/b%20c", 1000).unwrap();
        let signed = SignedQuery::parse(&query).unwrap().unwrap();
        let verify = |signed: &SignedQuery, key: &SigningKey, method, path, now_s| {
            let path = ResolvedPath::parse(path).unwrap();
            signed.signature(method, &path).is_valid(key, now_s)
        };
        for (method, path, now_s, expected) in [
            ("GET", "/a/b%20c", 0, true),
            ("HEAD", "/a/b%20c", 999, true),
            ("GET", "/x/../a//b%20%63", 0, true),
            ("GET", "/a/b%20c", 1000, false),
            ("PUT", "/a/b%20c", 0, false),
            ("DELETE", "/a/b%20c", 0, false),
            ("GET", "/a/b%20c/", 0, false),
            ("GET", "/a/b%2520c", 0, false),
            ("GET", "/a", 0, false),
            ("GET", "/", 0, false),
        ] {
            let found = verify(&signed, &key(1), method, path, now_s);
            assert_eq!(found, expected, "{method} {path} {now_s}");
        }
        assert!(!verify(&signed, &key(2), "GET", "/a/b%20c", 0));
        for (from, to) in [
            ("ann", "bob"),
            ("1000", "2000"),
            ("signature=", "signature=AA"),
        ] {
            let changed = query.replacen(from, to, 1);
            if let Some(Ok(changed)) = SignedQuery::parse(&changed) {
                assert!(!verify(&changed, &key(1), "GET", "/a/b%20c", 0), "{from}");
            }
        }
    }

    #[test]
    fn a_folder_is_not_the_object_of_its_name() {
        let of = |path| sign_query(&key(1), "ann", "GET", path, 1000).unwrap();
        assert_ne!(of("/a"), of("/a/"));
        assert_eq!(of("/a/"), of("/./a//"));
        assert!(sign_query(&key(1), "ann", "GET", "/..", 1).is_err());
        assert!(sign_query(&key(1), "ann", "GET", "a", 1).is_err());
    }

    #[test]
    fn other_queries_are_refused() {
        let good = "onrush-user=a&onrush-expires=1&onrush-signature=AA";
        assert!(matches!(SignedQuery::parse(good), Some(Ok(_))));
        for unsigned in ["", "a=1", "limit=1&after=onrush-user", "x-onrush-user=a"] {
            assert_eq!(SignedQuery::parse(unsigned), None, "{unsigned}");
        }
        for wrong in [
            format!("{good}&x=1"),
            format!("limit=1&{good}"),
            format!("{good}&onrush-user=a"),
            format!("{good}&onrush-expires=1"),
            format!("{good}&onrush-other=1"),
            format!("{good}&"),
            "onrush-user=a".to_owned(),
            good.replace("=1", "=+1"),
            good.replace("=1", "="),
            good.replace("=1", "=99999999999999999999999"),
            good.replace("AA", "A?"),
            good.replace("=a&", "=%ff&"),
        ] {
            assert!(
                matches!(SignedQuery::parse(&wrong), Some(Err(_))),
                "{wrong}"
            );
        }
    }
}
