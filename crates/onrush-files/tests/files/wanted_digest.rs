//! `Repr-Digest` of responses to requests with `Want-Repr-Digest`.

use crate::common::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

fn sha_256(content: &[u8]) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(content)))
}

fn sha_512(content: &[u8]) -> String {
    format!("sha-512=:{}:", STANDARD.encode(Sha512::digest(content)))
}

#[test]
fn a_digest_that_is_asked_for_is_that_of_the_whole_object() {
    on_all_backends(&writable(), |server| {
        // In memory; from a file, cached and not.
        for size in [0, 3, 100_000] {
            let content = pattern(size);
            let put = server.request(&format!("PUT /{size}"), &content);
            assert_eq!(put.status, 201, "{}", server.name);
            let etag = put.field("etag").unwrap().to_owned();
            for age_s in [0, 100, 100] {
                if age_s > 0 {
                    server.set_age(&size.to_string());
                }
                for method in ["GET", "HEAD"] {
                    let mut with = |value: &str| {
                        let request = format!("{method} /{size}\nWant-Repr-Digest: {value}");
                        server.request(&request, b"")
                    };
                    let reply = with("sha-256=1");
                    let digest = reply.field("repr-digest").map(str::to_owned);
                    assert_eq!(reply.status, 200);
                    assert_eq!(digest, Some(sha_256(&content)), "{}: {size}", server.name);
                    assert!(method == "HEAD" || reply.body == content);
                    let reply = with("sha-256=1, sha-512=2");
                    let digest = reply.field("repr-digest").map(str::to_owned);
                    assert_eq!(digest, Some(sha_512(&content)));
                    for nothing in ["sha-256=0", "crc32c=10", "x"] {
                        assert_eq!(with(nothing).field("repr-digest"), None);
                    }
                    let plain = server.request(&format!("{method} /{size}"), b"");
                    assert_eq!(plain.field("repr-digest"), None);
                }
            }
            if size == 100_000 {
                let ask = "Want-Repr-Digest: sha-256=9";
                let part = format!("GET /{size}\nRange: bytes=5-9\n{ask}");
                let part = server.request(&part, b"");
                assert_eq!((part.status, &part.body[..]), (206, &content[5..10]));
                assert_eq!(part.field("repr-digest"), Some(&*sha_256(&content)));
                let tag = server.request(&format!("GET /{size}"), b"");
                let etag = tag.field("etag").unwrap_or(&etag).to_owned();
                let same = format!("GET /{size}\nIf-None-Match: {etag}\n{ask}");
                assert_eq!(server.request(&same, b"").status, 304);
            }
        }
        // Too large, without a transfer.
        let how = onrush_rt::fs::OpenHow::create_new(0o644);
        server
            .root()
            .open(b"large", how)
            .unwrap()
            .set_len(5 << 20)
            .unwrap();
        let large = server.request("HEAD /large\nWant-Repr-Digest: sha-256=9", b"");
        assert_eq!((large.status, large.field("repr-digest")), (200, None));
        let missing = server.request("GET /missing\nWant-Repr-Digest: sha-256=9", b"");
        assert_eq!((missing.status, missing.field("repr-digest")), (404, None));
    });
}
