//! The types of the values of the options for access control, and their text forms.

use onrush_files::Cors;
use onrush_files::access::PasswordHash;
use onrush_files::access::users::check_name;
use serde::Deserialize;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A user with a password, or with its hash, as NAME:PASSWORD.
///
/// Every text is accepted here, because the message for an invalid value repeats it, and the log
/// may be read by more people than the password. [`AuthUser::parts`] checks it.
#[derive(Clone, Deserialize, PartialEq, Eq)]
pub(crate) struct AuthUser(String);

/// Without the password, because settings are logged.
impl fmt::Debug for AuthUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.split_once(':').map(|(name, _)| name);
        write!(f, "AuthUser({:?})", name.unwrap_or_default())
    }
}

impl FromStr for AuthUser {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<AuthUser, Infallible> {
        Ok(AuthUser(text.to_owned()))
    }
}

impl AuthUser {
    /// The name and the hash of the password. To make the hash takes some 20 ms.
    pub(crate) fn parts(&self) -> Result<(String, PasswordHash), String> {
        let parts = self.0.split_once(':').filter(|(name, _)| !name.is_empty());
        let (name, secret) = parts.ok_or("write NAME:PASSWORD")?;
        check_name(name)?;
        let hash = match secret.starts_with("$argon2") {
            true => PasswordHash::parse(secret)?,
            false => PasswordHash::of(secret)?,
        };
        Ok((name.to_owned(), hash))
    }
}

/// An origin whose pages may send requests, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin(pub(crate) String);

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Origin, String> {
        Cors::new([text]).map(|_| Origin(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_name_and_a_password_that_is_not_shown() {
        let of = |text: &str| AuthUser(text.to_owned());
        assert_eq!(format!("{:?}", of("ann:secret")), "AuthUser(\"ann\")");
        assert_eq!(format!("{:?}", of("secret")), "AuthUser(\"\")");
        let (name, hash) = of("ann:a:b,c").parts().unwrap();
        assert!(name == "ann" && hash.verify(b"a:b,c"));
        assert_eq!(
            of(&format!("bob:{hash}")).parts(),
            Ok(("bob".to_owned(), hash))
        );
        for wrong in ["", "ann", "ann:", ":x", "a b:x", "ann:$argon2id$v=19$x"] {
            let error = of(wrong).parts().unwrap_err();
            assert!(!error.contains("$v"), "{error}");
        }
    }
}
