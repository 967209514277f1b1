//! The field `Authorization` (RFC 9110 §11.6.2) with the schemes Basic (RFC 7617) and Bearer
//! (RFC 6750).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Some clients omit the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The longest value that is read, in bytes.
const VALUE_BYTES_MAX: usize = 4096;

/// What a client presents. It is not verified.
#[derive(PartialEq, Eq)]
pub(crate) enum Credentials {
    Password { user: String, password: String },
    Token(Vec<u8>),
}

/// Why a value of `Authorization` is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// It breaks the syntax of its scheme: 400.
    Malformed,
    /// Another scheme: 401.
    Scheme,
}

impl Credentials {
    /// Parses the value of `Authorization`. Fails for everything that two readers could understand
    /// differently.
    pub(crate) fn parse(value: &[u8]) -> Result<Credentials, Invalid> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Invalid::Malformed);
        }
        let space = value.iter().position(|&byte| byte == b' ');
        let (scheme, rest) = value.split_at(space.unwrap_or(value.len()));
        let rest = rest.trim_ascii_start();
        if scheme.eq_ignore_ascii_case(b"basic") {
            return Credentials::parse_basic(rest).ok_or(Invalid::Malformed);
        }
        if scheme.eq_ignore_ascii_case(b"bearer") {
            let is_token = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
            return match !rest.is_empty() && rest.iter().all(|&byte| is_token(byte)) {
                true => Ok(Credentials::Token(rest.to_vec())),
                false => Err(Invalid::Malformed),
            };
        }
        Err(Invalid::Scheme)
    }

    fn parse_basic(encoded: &[u8]) -> Option<Credentials> {
        let text = String::from_utf8(BASE64.decode(encoded).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        // RFC 7617 §2: neither contains control characters.
        let is_text = !text.chars().any(char::is_control);
        (is_text && !user.is_empty()).then(|| Credentials::Password {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(text: &[u8]) -> Vec<u8> {
        [b"Basic ", BASE64.encode(text).as_bytes()].concat()
    }

    fn password(user: &str, password: &str) -> Result<Credentials, Invalid> {
        let (user, password) = (user.to_owned(), password.to_owned());
        Ok(Credentials::Password { user, password })
    }

    /// Credentials have no `Debug`, because they are secret.
    fn assert_parses(value: &[u8], expected: Result<Credentials, Invalid>) {
        assert!(
            Credentials::parse(value) == expected,
            "{}",
            value.escape_ascii()
        );
    }

    #[test]
    fn basic_and_bearer_are_read() {
        assert_parses(&basic(b"ann:pw"), password("ann", "pw"));
        assert_parses(&basic(b"ann:p:w "), password("ann", "p:w "));
        assert_parses(&basic(b"ann:"), password("ann", ""));
        assert_parses(&basic("änn:пароль".as_bytes()), password("änn", "пароль"));
        assert_parses(b"BASIC  YTpi", password("a", "b"));
        assert_parses(b"basic YTpiYw", password("a", "bc"));
        assert_parses(
            b"Bearer a-b._~+/=",
            Ok(Credentials::Token(b"a-b._~+/=".to_vec())),
        );
    }

    #[test]
    fn everything_ambiguous_is_malformed() {
        let long = [&b"Bearer "[..], &[b'a'; VALUE_BYTES_MAX]].concat();
        for value in [
            &b"Basic"[..],
            b"Basic ",
            b"Basic !!!!",
            b"Basic YTpi YTpi",
            b"Basic YTpi,",
            b"Basic YTpiY",
            &basic(b"no colon"),
            &basic(b":pw"),
            &basic(b"ann:p\0w"),
            &basic(b"an\nn:pw"),
            &basic(b"ann:\xff"),
            b"Bearer",
            b"Bearer ",
            b"Bearer a b",
            b"Bearer a,b",
            b"Bearer \xff",
            &long,
        ] {
            assert_parses(value, Err(Invalid::Malformed));
        }
        for value in [
            &b""[..],
            b"Digest username=\"ann\"",
            b"Basi YTpi",
            b"\xff",
            b"Basic\tYTpi",
        ] {
            assert_parses(value, Err(Invalid::Scheme));
        }
    }
}
