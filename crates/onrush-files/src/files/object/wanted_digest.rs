//! `Repr-Digest` of responses to requests that ask for it (`Want-Repr-Digest`, RFC 9530 §4).
//!
//! The digest is of the whole object, also in responses to HEAD, to a range, and without content
//! (304). It is computed for each request, on the blocking thread pool. A large object has none,
//! and neither has one that is compressed on the way, nor one for a client whose share of such work
//! is in progress: the field is a wish, and a short request must not cause much work.

use crate::files::http::digest::Algorithm;
use crate::files::object::LoadedObject;
use crate::shares::{Holder, Shares};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onrush::{Request, Response};
use onrush_proto::token;
use onrush_rt::blocking::BlockingPool;
use std::sync::Arc;

/// The maximum number of digests that are computed at a time, of which each client has a share.
const DIGESTS_MAX: usize = 8;
/// Digests of larger objects are not computed.
const OBJECT_BYTES_MAX: u64 = 4 << 20;

/// How many digests `pool` computes at a time: they leave half of the threads to others.
pub(in crate::files) fn at_once(pool: &BlockingPool) -> usize {
    (pool.threads_max() / 2).clamp(1, DIGESTS_MAX)
}

/// The supported algorithm that a request prefers. `None`: it asks for none.
pub(in crate::files) fn wanted(request: &Request) -> Option<Algorithm> {
    prefer(request.header_values("want-repr-digest"))
}

/// The algorithm with the highest preference, from the lines of the field: a dictionary of numbers
/// from 0 (not acceptable) to 10. Other members are ignored.
fn prefer<'r>(lines: impl Iterator<Item = &'r [u8]>) -> Option<Algorithm> {
    let mut best = None;
    for member in lines.flat_map(token::list) {
        let parts = str::from_utf8(member)
            .ok()
            .and_then(|member| member.split_once('='));
        let Some((name, value)) = parts else { continue };
        let value = value.split(';').next().unwrap_or_default().trim_end();
        let preference = value
            .parse::<u8>()
            .ok()
            .filter(|preference| (1..=10).contains(preference));
        let algorithm = Algorithm::from_name(name.as_bytes());
        if let (Some(preference), Some(algorithm)) = (preference, algorithm)
            && best.is_none_or(|(highest, _)| preference > highest)
        {
            best = Some((preference, algorithm));
        }
    }
    best.map(|(_, algorithm)| algorithm)
}

/// The value of `Repr-Digest` for an object. `None` if it is large, in another store, or has just
/// been changed by another program, and if the client has its share of `shares`.
pub(in crate::files) async fn compute(
    loaded: &LoadedObject,
    algorithm: Algorithm,
    pool: &BlockingPool,
    (shares, client): (&Arc<Shares>, Holder),
) -> Option<Vec<u8>> {
    if loaded.size() > OBJECT_BYTES_MAX {
        return None;
    }
    let share = shares.take(client, 1).ok()?;
    let content = loaded.clone();
    let job = move || {
        let _share = share;
        let digest = content.hash_blocking(algorithm)?;
        content.is_unchanged().then_some(digest)
    };
    let digest = pool.run(job).await.ok()??;
    Some(field_value(algorithm, &digest))
}

/// A digest as the value of a digest field (RFC 9530 §2).
fn field_value(algorithm: Algorithm, digest: &[u8]) -> Vec<u8> {
    let name = match algorithm {
        Algorithm::Sha512 => "sha-512",
        _ => "sha-256", // No other algorithm is chosen.
    };
    format!("{name}=:{}:", STANDARD.encode(digest)).into_bytes()
}

/// Adds the field to a response with an object, if the status is one that describes it.
pub(in crate::files) fn add(response: Response, value: Option<Vec<u8>>) -> Response {
    match (response.status(), value) {
        (200 | 206 | 304, Some(value)) => response.with_header("Repr-Digest", value),
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::http::types::Types;
    use crate::files::shared::budget::Budget;
    use onrush_rt::blocking::block_on;
    use onrush_rt::fs::sim::SimFs;
    use onrush_store::{Condition, Folder, FolderOptions, Key, Store};

    #[test]
    fn a_client_with_its_share_gets_none() {
        let pool = BlockingPool::inline();
        let root = SimFs::new(1).root().expect("a folder");
        let folder = Folder::on(root, pool.clone(), FolderOptions::default()).expect("a store");
        let key = Key::parse(b"a").expect("a key");
        let loaded = block_on(async {
            let upload = folder.stage(&key, Condition::None, Some(0)).await?;
            upload.commit().await?;
            let object = folder.get(&key).await?;
            let budget = Budget::new(0);
            LoadedObject::load(&object, &key, 0, true, &budget, &Types::default()).await
        });
        let loaded = loaded.expect("an object");
        let shares = Shares::new("digests", 2);
        let computed = |client| {
            let client = (&shares, Holder::user(client));
            block_on(compute(&loaded, Algorithm::Sha256, &pool, client))
        };
        let empty = b"sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";
        assert_eq!(computed("ann").as_deref(), Some(&empty[..]));
        let share = shares
            .take(Holder::user("ann"), 1)
            .expect("it was given back");
        assert_eq!(computed("ann"), None);
        assert_eq!(computed("bob").as_deref(), Some(&empty[..]));
        drop(share);
        assert_eq!(computed("ann").as_deref(), Some(&empty[..]));
    }

    #[test]
    fn half_of_the_threads_compute_none() {
        for (threads, expected) in [(1, 1), (2, 1), (7, 3), (16, 8), (64, 8)] {
            assert_eq!(at_once(&BlockingPool::threads(threads, 1)), expected);
        }
        assert_eq!(at_once(&BlockingPool::inline()), 1);
    }

    #[test]
    fn the_highest_preference_is_chosen() {
        let of = |lines: &[&str]| prefer(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(of(&["sha-256=1"]), Some(Algorithm::Sha256));
        assert_eq!(of(&["sha-256=3, sha-512=10"]), Some(Algorithm::Sha512));
        assert_eq!(
            of(&["sha-512=2", "sha-256=9;q=1, crc32c=10"]),
            Some(Algorithm::Sha256)
        );
        for none in [
            "",
            "sha-256",
            "sha-256=0",
            "sha-256=11",
            "sha-256=x",
            "md5=5",
            "sha=1",
        ] {
            assert_eq!(of(&[none]), None, "{none}");
        }
    }
}
