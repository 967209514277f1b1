//! Hashes of passwords: Argon2id (RFC 9106), written as a PHC string.

use argon2::password_hash::{PasswordHasher, phc};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use std::fmt;
use std::sync::{Mutex, PoisonError};

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
        password.len() <= PASSWORD_BYTES_MAX && self.is_hash_of(password).unwrap_or_default()
    }

    fn is_hash_of(&self, password: &[u8]) -> Option<bool> {
        let params = Params::try_from(&self.0).ok()?;
        let (salt, expected) = (self.0.salt.as_ref()?, self.0.hash.as_ref()?);
        let version = self.0.version.map(Version::try_from);
        let version = version.transpose().ok()?.unwrap_or(Version::V0x13);
        let mut out = vec![0; expected.len()];
        let mut memory = Memory::take(params.block_count());
        let argon2 = Argon2::new(Algorithm::Argon2id, version, params);
        let salt: &[u8] = salt.as_ref();
        let done = argon2.hash_password_into_with_memory(password, salt, &mut out, &mut memory.0);
        done.ok()?;
        // The comparison takes constant time.
        Some(phc::Output::new(&out).ok()? == *expected)
    }
}

/// The memory of hashes that are not computed now. Each is used again: allocators keep such blocks
/// in the heap of every thread that had one. So there are at most as many as hashes that were
/// computed at once.
static UNUSED: Mutex<Vec<Vec<Block>>> = Mutex::new(Vec::new());

/// Larger memory is returned to the system, which allocators do for such sizes. In blocks of 1 KiB.
const KEPT_BLOCKS_MAX: usize = 32 << 10;

/// The memory of a hash.
struct Memory(Vec<Block>);

impl Memory {
    /// Memory of this many blocks.
    fn take(blocks: usize) -> Memory {
        let unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut memory = unused.unwrap_or_default();
        memory.resize(blocks, Block::new());
        Memory(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.0.capacity() > KEPT_BLOCKS_MAX {
            return;
        }
        let mut memory = std::mem::take(&mut self.0);
        memory.fill(Block::new()); // It depends on the password.
        let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(memory);
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
    fn the_memory_of_a_hash_is_used_again_and_cleared() {
        let hash = PasswordHash::of("password").unwrap();
        let verified = |_| assert!(hash.verify(b"password"));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..8).for_each(verified));
            }
        });
        let unused = UNUSED.lock().unwrap();
        // Other tests verify as well, one hash at a time each.
        assert!((1..=16).contains(&unused.len()), "{}", unused.len());
        let is_clear = |block: &Block| block.as_ref().iter().all(|word| *word == 0);
        assert!(unused.iter().flatten().all(is_clear));
        drop(unused);
        drop(Memory::take(KEPT_BLOCKS_MAX + 1));
        let unused = UNUSED.lock().unwrap();
        assert!(
            unused
                .iter()
                .all(|memory| memory.capacity() <= KEPT_BLOCKS_MAX)
        );
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
