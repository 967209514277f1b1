//! Hashes of passwords: Argon2id (RFC 9106), written as a PHC string.

use argon2::password_hash::{PasswordHasher, PasswordVerifier, phc};
use argon2::{Algorithm, Argon2, Params, Version};
use std::fmt;

/// The largest cost of a hash that is accepted: 1 GiB of memory, in KiB, and 64 passes. A larger
/// one is a mistake that would stop the server.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 64;

/// The length of a salt in bytes (RFC 9106 §3.1).
const SALT_BYTES: usize = 16;

/// The longest password in bytes. It bounds the work of a request.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1024;

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(phc::PasswordHash);

/// Without the hash.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash")
    }
}

/// As a PHC string.
impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PasswordHash {
    /// Hashes a password with the parameters that OWASP recommends (19 MiB, two passes, one lane).
    /// This takes some 20 ms of CPU time. Fails if the password is empty or longer than 1,024
    /// bytes.
    pub fn of(password: &str) -> Result<PasswordHash, String> {
        if !(1..=PASSWORD_BYTES_MAX).contains(&password.len()) {
            return Err("a password has 1 to 1024 bytes".to_owned());
        }
        let mut salt = [0; SALT_BYTES];
        let failed = |_| "the system has no random numbers".to_owned();
        aws_lc_rs::rand::fill(&mut salt).map_err(failed)?;
        let hash: Result<phc::PasswordHash, _> =
            Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
        hash.map(PasswordHash)
            .map_err(|error| format!("the password cannot be hashed: {error}"))
    }

    /// Reads a PHC string of Argon2id.
    pub fn parse(text: &str) -> Result<PasswordHash, String> {
        const WRONG: &str = "the password is not an Argon2id hash; onrush user passwd \
                             makes one";
        let hash = phc::PasswordHash::new(text).map_err(|_| WRONG)?;
        let is_complete = hash.algorithm.as_str() == "argon2id" && hash.salt.is_some();
        if !is_complete || hash.hash.is_none() {
            return Err(WRONG.to_owned());
        }
        let params = Params::try_from(&hash).map_err(|_| WRONG)?;
        if params.m_cost() > MEMORY_KIB_MAX || params.t_cost() > PASSES_MAX {
            return Err("the password hash needs more than 1 GiB or 64 passes".to_owned());
        }
        Ok(PasswordHash(hash))
    }

    /// Whether this is the password. The comparison takes constant time; the hash takes the CPU
    /// time that its parameters say. Do not call it on a worker.
    pub fn verify(&self, password: &[u8]) -> bool {
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default());
        password.len() <= PASSWORD_BYTES_MAX && argon2.verify_password(password, &self.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_verifies_its_password_only() {
        let hash = PasswordHash::of("pässword").unwrap();
        let again = PasswordHash::parse(&hash.to_string()).unwrap();
        assert!(again.verify("pässword".as_bytes()));
        assert!(!again.verify(b"password") && !again.verify(b""));
        assert_ne!(
            hash,
            PasswordHash::of("pässword").unwrap(),
            "the salt is random"
        );
        assert_eq!(format!("{hash:?}"), "PasswordHash");
        assert!(PasswordHash::of("").is_err());
        assert!(PasswordHash::of(&"x".repeat(1025)).is_err());
    }

    #[test]
    fn only_reasonable_argon2id_hashes_are_accepted() {
        let end = "c2FsdHNhbHRzYWx0$hRFx00u7DHfR2lXlRCBbVvHH3sqULpT9jSJVqpHWBIE";
        assert!(PasswordHash::parse(&format!("$argon2id$v=19$m=64,t=1,p=1${end}")).is_ok());
        for wrong in [
            "hunter2".to_owned(),
            format!("$argon2i$v=19$m=64,t=1,p=1${end}"),
            format!("$argon2id$v=19$m=2097152,t=1,p=1${end}"),
            format!("$argon2id$v=19$m=64,t=65,p=1${end}"),
            "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHRzYWx0".to_owned(),
            "$argon2id$v=19$m=64,t=1,p=1".to_owned(),
        ] {
            assert!(PasswordHash::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
