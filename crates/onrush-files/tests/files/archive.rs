//! A folder as an archive: everything beneath it that a listing shows, and nothing else.

use crate::common::*;
use onrush_files::FilesOptions;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

/// The entries of an archive: path and content; `None` for a folder.
type Entries = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn entries(archive: &[u8]) -> Entries {
    assert!(archive.len() >= 1024 && archive.len().is_multiple_of(512));
    assert!(archive.ends_with(&[0; 1024]), "it is complete");
    let mut found = Entries::new();
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let path = entry
            .path()
            .expect("a path")
            .as_os_str()
            .as_bytes()
            .to_vec();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("content");
        let is_folder = entry.header().entry_type().is_dir();
        if !is_folder {
            assert_eq!(entry.header().mtime().expect("a time"), LONG_AGO_S);
        }
        let replaced = found.insert(path, (!is_folder).then_some(content));
        assert_eq!(replaced, None, "every entry once");
    }
    found
}

fn archive(server: &mut TestServer, path: &str) -> Entries {
    let reply = server.get(&format!("{path}?archive=tar"));
    assert_eq!(
        (reply.status, reply.field("content-type")),
        (200, Some("application/x-tar"))
    );
    entries(&reply.body)
}

#[test]
fn an_archive_has_what_listings_show() {
    on_all_backends_at("/mnt/", &FilesOptions::default(), |server| {
        let long = format!("{}/{}", "d".repeat(200), "f".repeat(250));
        let files: [(&[u8], Vec<u8>); 7] = [
            (b"a/x.txt", b"content".to_vec()),
            (b"a/empty", Vec::new()),
            (b"a/whole blocks", pattern(1024)),
            (b"a/large", pattern(300_000)),
            (b"a/sub/\xff\n\"odd", b"odd".to_vec()),
            (b"a/sub/z", b"z".to_vec()),
            (b"a/b/c/d", b"deep".to_vec()),
        ];
        let mut expected = Entries::new();
        for (name, content) in files {
            server.add_at(name, &content, LONG_AGO_S);
            expected.insert(name.to_vec(), Some(content));
        }
        server.add_at(format!("a/{long}").as_bytes(), b"long", LONG_AGO_S);
        expected.insert(format!("a/{long}").into_bytes(), Some(b"long".to_vec()));
        server.add_folder("a/none");
        for folder in ["a/", "a/sub/", "a/b/", "a/b/c/", "a/none/"] {
            expected.insert(folder.into(), None);
        }
        expected.insert(format!("a/{}/", "d".repeat(200)).into_bytes(), None);
        server.add("a/.hidden", b"secret");
        server.add("a/.folder/file", b"secret");
        server.add_fifo("a/fifo");
        server.add("beside", b"not in it");
        let found = archive(server, "/mnt/a/");
        assert!(found == expected, "{}: {:?}", server.name, found.keys());

        let top = archive(server, "/mnt/");
        assert_eq!(
            top[&b"files/beside"[..]].as_deref(),
            Some(&b"not in it"[..])
        );
        assert_eq!(top[&b"files/a/b/c/d"[..]].as_deref(), Some(&b"deep"[..]));

        let reply = server.get("/mnt/a/sub/?archive=tar");
        assert_eq!(
            reply.field("content-disposition"),
            Some("attachment; filename=\"sub.tar\"; filename*=UTF-8''sub.tar")
        );
        assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
        let head = server.request("HEAD /mnt/a/?archive=tar", b"");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(server.get("/mnt/missing/?archive=tar").status, 404);
        assert_eq!(server.get("/mnt/.hidden/?archive=tar").status, 404);
        assert_eq!(server.get("/mnt/a/?archive=rar").status, 400);

        let reply = server.get("/mnt/a/sub/?archive=zip");
        assert_eq!(reply.field("content-type"), Some("application/zip"));
        let disposition = "attachment; filename=\"sub.zip\"; filename*=UTF-8''sub.zip";
        assert_eq!(reply.field("content-disposition"), Some(disposition));
        assert!(reply.body.starts_with(b"PK\x03\x04") && reply.body.ends_with(&[0; 2]));
        let contains = |bytes: &[u8]| reply.body.windows(bytes.len()).any(|found| found == bytes);
        assert!(contains(b"sub/%FF%0A%22odd") && contains(b"sub/z"));
        let head = server.request("HEAD /mnt/a/?archive=tar.zst", b"");
        assert_eq!(head.field("content-type"), Some("application/zstd"));
    });
}

#[test]
fn links_to_folders_that_contain_them_end() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a/file", b"x");
        server.add("b/other", b"y");
        server.add_symlink("a/to-b", "../b");
        server.add_symlink("a/itself", ".");
        server.add_symlink("b/top", "..");
        server.add_symlink("out", "/etc");
        let found = archive(server, "/a/");
        assert_eq!(found[&b"a/to-b/other"[..]].as_deref(), Some(&b"y"[..]));
        assert!(found.len() < 40, "{:?}", found.keys());
        let found = archive(server, "/");
        assert!(found.len() < 60 && !found.contains_key(&b"files/out/"[..]));
    });
}

#[test]
fn folders_with_several_pages_are_whole() {
    for cold in [false, true] {
        let mut server = TestServer::simulated("/", &FilesOptions::default(), 7);
        let mut expected: Vec<String> = (0..2300).map(|at| format!("many/{at:05}")).collect();
        expected.extend((0..1100).map(|at| format!("many/f/{at}/x")));
        for name in &expected {
            server.add(name, name.as_bytes());
        }
        server.disk().set_cold(cold);
        let found = archive(&mut server, "/many/");
        for name in &expected {
            let content = found.get(name.as_bytes()).cloned().flatten();
            assert_eq!(content.as_deref(), Some(name.as_bytes()), "{name}");
        }
        assert_eq!(found.len(), expected.len() + 1100 + 2);
    }
}

/// Bytes that do not become fewer by compression.
fn random(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len / 8).flat_map(|_| next()).collect()
}

#[test]
fn slow_readers_of_compressed_archives_do_not_prevent_zips() {
    for driver in drivers() {
        let mut server = TestServer::real("/", &FilesOptions::default(), driver);
        server.add("large/a", &random(32 << 20));
        server.add("small/b", b"content");
        let ask = b"GET /large/?archive=tar.zst HTTP/1.1\r\nHost: test\r\n\r\n";
        let mut slow = Vec::new();
        for _ in 0..4 {
            let mut connection = server.connect();
            server.send(&mut connection, ask);
            let head = server.receive_until(&mut connection, |bytes| bytes.len() > 12);
            assert!(head.starts_with(b"HTTP/1.1 200 "));
            slow.push(connection);
        }
        let refused = server.get("/small/?archive=tar.zst");
        assert_eq!(refused.status, 429, "one client has half");
        let zip = server.get("/small/?archive=zip");
        assert_eq!(zip.status, 200);
        assert!(zip.body.windows(7).any(|found| found == b"content"));
        assert_eq!(zip.body[zip.body.len() - 22..][..4], *b"PK\x05\x06");
    }
}
