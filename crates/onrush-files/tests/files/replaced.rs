//! COPY and MOVE onto a folder that exists: it is there until something else is in its place,
//! whatever fails.

use crate::common::webdav::webdav;
use crate::common::{Reply, TempDir, TestServer};
use crate::common::{available_drivers, on_all_backends, writable};
use onrush::DriverPreference;
use onrush_files::FilesOptions;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::fs::sim::SimFs;
use onrush_store::cache::CacheOptions;
use onrush_store::testing::MemoryStore;
use onrush_store::{EdgeOptions, EdgeStore, Folder, FolderOptions, Key, Quota, QuotaStore, Store};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

fn with_folders() -> FilesOptions {
    let mut options = writable();
    options.allow.delete_folders = true;
    options
}

fn send(server: &mut TestServer, method: &str, from: &str, to: &str) -> Reply {
    server.request(&format!("{method} {from}\nDestination: {to}"), b"")
}

/// `/new/` and `/old/`, without the server.
fn add_both(server: &TestServer) {
    for (name, content) in [
        ("new/1", &b"new"[..]),
        ("new/sub/2", b"new"),
        ("old/1", b"old"),
        ("old/deep/3", b"old"),
    ] {
        server.add(name, content);
    }
}

/// Whether `/old/` is as it was, or else has exactly what was copied or moved there.
fn is_old(server: &TestServer, at: &str) -> bool {
    let content = |name: &str| server.content(name);
    let found = ["old/1", "old/deep/3", "old/sub/2"].map(content);
    let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    let is_old = found == [old.clone(), old, None];
    let is_new = found == [new.clone(), None, new];
    assert!(is_old || is_new, "{at}: {found:?}");
    is_old
}

#[test]
fn a_folder_is_replaced_as_a_whole() {
    for method in ["COPY", "MOVE"] {
        on_all_backends(&with_folders(), |server| {
            add_both(server);
            let reply = send(server, method, "/new/", "/old/");
            assert_eq!((reply.status, reply.text()), (204, ""), "{method}");
            assert!(!is_old(server, method));
            assert_eq!(server.get("/old/sub/2").text(), "new");
            assert_eq!(server.get("/old/deep/3").status, 404);
            let source = if method == "COPY" { 200 } else { 404 };
            assert_eq!(server.get("/new/1").status, source);
            crate::common::wait_until(server, |server| server.staged() == 0);
        });
    }
}

/// One folder with two names, through a link above it.
#[test]
fn names_of_one_folder_are_one_folder() {
    on_all_backends(&with_folders(), |server| {
        server.add("releases/1/x/y/a", b"a");
        server.add("releases/1/x/b", b"b");
        server.add_symlink("current", "releases/1");
        for (from, to, status) in [
            ("/releases/1/x/", "/current/x/", 403),
            ("/current/x/", "/releases/1/x/", 403),
            ("/releases/1/", "/current/", 403),
            ("/releases/1/x/", "/current/x/new/", 403),
            ("/releases/1/x/", "/current/x/y/", 403),
            ("/current/x/y/", "/releases/1/x/", 409),
            ("/current/x/y/", "/releases/1/", 409),
            ("/releases/1/x/b", "/current/x/b", 403),
        ] {
            for method in ["COPY", "MOVE"] {
                let reply = send(server, method, from, to);
                let at = format!("{method} {from} {to}: {}", reply.text());
                assert_eq!(reply.status, status, "{at}");
                assert_eq!(server.get("/current/x/y/a").text(), "a", "{at}");
                assert_eq!(server.get("/releases/1/x/b").text(), "b", "{at}");
                assert_eq!(server.get("/current/x/new/").status, 404, "{at}");
            }
        }
    });
}

/// A link in the source leads to a part of the destination, which would be deleted with it, or to
/// the folder of the copy, which would be copied to itself again and again.
#[test]
fn a_copy_is_not_of_its_destination() {
    on_all_backends(&with_folders(), |server| {
        server.add("a/sub/x", b"x");
        server.add("b/own", b"own");
        server.add_symlink("b/link", "../a/sub");
        server.add("o/f", b"f");
        server.add("d/g", b"g");
        server.add_symlink("d/link", "../o");
        for (from, to, at, refused) in [
            ("/b/", "/a/", "/a/link/", "409 Conflict"),
            ("/b/", "/a/sub/", "/a/sub/link/", "403 Forbidden"),
            ("/d/", "/o/new/", "/o/new/link/", "403 Forbidden"),
        ] {
            let reply = send(server, "COPY", from, to);
            let text = reply.text();
            assert_eq!(reply.status, 207, "{from} {to}: {text}");
            let href = format!("<D:href>{at}</D:href>");
            assert!(text.contains(&href) && text.contains(refused), "{text}");
            assert_eq!(text.matches("<D:response>").count(), 1, "{text}");
            assert_eq!(server.get("/a/sub/x").text(), "x", "{from} {to}");
            assert_eq!(server.get("/b/link/x").text(), "x", "{from} {to}");
            assert_eq!(server.get("/b/own").text(), "own", "{from} {to}");
        }
        assert_eq!(server.get("/o/new/g").text(), "g");
        assert_eq!(server.get("/o/new/link/").status, 404);
    });
}

/// An object of the source is a link to an object of the destination, which would be deleted with
/// it: then the source would have less than before.
#[test]
fn a_copy_leaves_what_its_source_links_to() {
    let mut options = webdav();
    options.allow.delete_folders = true;
    on_all_backends(&options, |server| {
        server.add("a/sub/x", b"x");
        server.add("b/in/own", b"own");
        server.add_symlink("b/in/next", "../../c/link");
        server.add("c/own", b"own");
        server.add_symlink("c/link", "../a/sub/x");
        server.add_symlink("b/apart", "in/own");
        let refused = |server: &mut TestServer, from: &str, to: &str, at: &str| {
            let reply = send(server, "COPY", from, to);
            let text = reply.text();
            match at {
                "" => assert_eq!(reply.status, 409, "{from} {to}: {text}"),
                at => {
                    assert_eq!(reply.status, 207, "{from} {to}: {text}");
                    let href = format!("<D:href>{at}</D:href>");
                    let is_named = text.contains(&href) && text.contains("409 Conflict");
                    assert!(is_named, "{from} {to}: {text}");
                }
            }
            for at in ["/a/sub/x", "/c/link", "/b/in/next"] {
                assert_eq!(server.get(at).text(), "x", "{from} {to}: {at}");
            }
            assert_eq!(server.get("/b/in/own").text(), "own", "{from} {to}");
        };
        refused(server, "/b/", "/a/", "/a/in/next");
        refused(server, "/b/in/", "/a/sub/", "/a/sub/next");
        refused(server, "/c/", "/a/", "/a/link");
        refused(server, "/c/link", "/a", "");
        refused(server, "/b/in/next", "/a/sub", "");
        assert_eq!(send(server, "COPY", "/b/in/next", "/a/sub/x").status, 403);
        // A copy beside it has the content.
        assert_eq!(send(server, "COPY", "/b/", "/a/new/").status, 201);
        for (at, text) in [("in/next", "x"), ("in/own", "own"), ("apart", "own")] {
            assert_eq!(server.get(&format!("/a/new/{at}")).text(), text, "{at}");
        }
        server.add("d/old", b"old");
        assert_eq!(send(server, "COPY", "/b/", "/d/").status, 204);
        assert_eq!(server.get("/d/in/next").text(), "x");
        assert_eq!(server.get("/d/old").status, 404);
    });
}

/// What the source or the destination contains refuses it, before anything is changed.
#[test]
fn a_refused_change_leaves_the_destination() {
    on_all_backends(&with_folders(), |server| {
        add_both(server);
        server.add("old/deep/.hidden", b"kept");
        let hidden = "the destination contains hidden names, or files that are no objects\n";
        for method in ["COPY", "MOVE"] {
            let reply = send(server, method, "/new/", "/old/");
            assert_eq!((reply.status, reply.text()), (409, hidden), "{method}");
            assert!(is_old(server, method));
            assert!(server.content("old/deep/.hidden").is_some());
        }
        server.add("out/a", b"a");
        server.add("secret", b"secret");
        server.add_symlink("out/link", "../secret");
        let reply = send(server, "MOVE", "/out/", "/old/");
        let text = "the folder contains a relative symbolic link that leads out of it\n";
        assert_eq!((reply.status, reply.text()), (409, text));
        assert_eq!(send(server, "MOVE", "/out/", "/free/").status, 409);
        assert_eq!(server.get("/out/link").text(), "secret");
        assert_eq!(server.get("/free/").status, 404);
        assert!(is_old(server, "a link"));
    });
    // With WebDAV, also an object replaces a folder.
    let mut options = webdav();
    options.hidden = false;
    on_all_backends(&options, |server| {
        add_both(server);
        server.add("o", b"object");
        server.add("old/.hidden", b"kept");
        for method in ["COPY", "MOVE"] {
            assert_eq!(send(server, method, "/o", "/old").status, 409, "{method}");
            assert_eq!(server.get("/o").text(), "object");
            assert!(is_old(server, method));
        }
    });
}

/// An error at any operation: its status, and the destination is what it was.
#[test]
fn an_error_of_the_disk_leaves_the_destination() {
    for (method, errno, expected) in [
        ("MOVE", libc::EIO, 500),
        ("MOVE", libc::EXDEV, 409),
        ("MOVE", libc::EACCES, 403),
        ("MOVE", libc::EDQUOT, 507),
        ("MOVE", libc::ENOSPC, 507),
        ("MOVE", libc::EROFS, 503),
        ("COPY", libc::EIO, 500),
        ("COPY", libc::EXDEV, 409),
        ("COPY", libc::EACCES, 403),
        ("COPY", libc::EDQUOT, 507),
        ("COPY", libc::ENOSPC, 507),
    ] {
        let server = |seed| {
            let disk = SimFs::new(seed);
            disk.set_journaled(true);
            let server = TestServer::simulated_on(disk, "/", &with_folders(), seed);
            add_both(&server);
            server
        };
        let count = {
            let mut server = server(1);
            let begin = server.disk().operations();
            assert_eq!(send(&mut server, method, "/new/", "/old/").status, 204);
            server.disk().operations() - begin
        };
        let mut seen = BTreeSet::new();
        for number in 0..count {
            let mut server = server(1);
            let disk = server.disk().clone();
            disk.fail_at(disk.operations() + number, errno);
            let reply = send(&mut server, method, "/new/", "/old/");
            let at = format!(
                "{method}, errno {errno}, operation {number}: {} {}",
                reply.status,
                reply.text()
            );
            // A listing leaves out what cannot be reached, and so does a copy.
            let leaves_out = method == "COPY" && [libc::EXDEV, libc::EACCES].contains(&errno);
            if leaves_out && reply.status == 204 {
                assert_eq!(server.content("old/deep/3"), None, "{at}");
                assert_ne!(server.content("old/1"), Some(b"old".to_vec()), "{at}");
            } else {
                assert_eq!(is_old(&server, &at), reply.status != 204, "{at}");
            }
            let whole = server.content("new/1").is_some() && server.content("new/sub/2").is_some();
            assert_eq!(whole, method == "COPY" || reply.status != 204, "{at}");
            if reply.status == 207 {
                let status = format!("HTTP/1.1 {expected} ");
                seen.insert(207);
                // The name of what could not be made, or of a folder that could not be read.
                let text = reply.text();
                let is_named =
                    ["/old/", "/new/"].map(|name| text.contains(&format!("href>{name}")));
                let is_named = is_named.contains(&true);
                assert!(is_named && !text.contains(".onrush"), "{at}");
                let is_known = text.contains(&status) || text.contains("HTTP/1.1 4");
                assert!(is_known || errno == libc::EXDEV, "{at}");
            } else {
                seen.insert(reply.status);
                // What cannot be looked up is not found, or in the way. Calls that have no path
                // never fail with EXDEV.
                let others = [204, 404, 409, if errno == libc::EXDEV { 500 } else { 204 }];
                let is_known = reply.status == expected || others.contains(&reply.status);
                assert!(is_known, "{at}");
            }
            // The next attempt succeeds.
            if reply.status != 204 {
                assert_eq!(send(&mut server, method, "/new/", "/old/").status, 204);
                assert!(!is_old(&server, &at));
            }
        }
        assert!(seen.contains(&expected), "{method} {errno}: {seen:?}");
    }
}

/// A destination on another file system: a move is refused and changes nothing, a copy is made
/// there. What is mounted is never replaced.
#[test]
fn another_file_system_loses_nothing() {
    let disk = SimFs::new(1);
    disk.root().unwrap().create_dir(b"disk", 0o755).unwrap();
    disk.mount(b"disk").unwrap();
    let server = &mut TestServer::simulated_on(disk.clone(), "/", &with_folders(), 1);
    let refused = "both names are not on one file system of the server, so this cannot be one \
                   step; copy and delete instead\n";
    add_both(server);
    for (name, content) in [("disk/old/1", b"old"), ("disk/old/deep/3", b"old")] {
        server.add(name, content);
    }
    let contents = |server: &TestServer, top: &str| {
        ["1", "deep/3", "sub/2"].map(|name| server.content(&format!("{top}/{name}")))
    };
    let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    let (old, new) = ([old.clone(), old, None], [new.clone(), None, new]);
    for (from, to) in [
        ("/new/", "/disk/old/"),
        ("/disk/old/", "/new/"),
        ("/disk/", "/new/"),
    ] {
        let reply = send(server, "MOVE", from, to);
        assert_eq!((reply.status, reply.text()), (409, refused), "{from} {to}");
        assert_eq!(contents(server, "disk/old"), old);
        assert_eq!(contents(server, "new"), new);
    }
    for method in ["COPY", "MOVE"] {
        let reply = send(server, method, "/new/", "/disk/");
        assert_eq!((reply.status, reply.text()), (409, refused), "{method}");
        assert_eq!(contents(server, "disk/old"), old);
        assert_eq!(contents(server, "new"), new);
    }
    assert_eq!(send(server, "COPY", "/new/", "/disk/old/").status, 204);
    assert_eq!(contents(server, "disk/old"), new);
    assert_eq!(contents(server, "new"), new);
    assert_eq!(send(server, "COPY", "/disk/old/", "/old/").status, 204);
    assert_eq!(contents(server, "old"), new);
    // Within it, a move is one step.
    assert_eq!(send(server, "COPY", "/new/", "/disk/next/").status, 201);
    server.add("disk/next/1", b"next");
    assert_eq!(
        send(server, "MOVE", "/disk/next/", "/disk/old/").status,
        204
    );
    assert_eq!(server.content("disk/old/1"), Some(b"next".to_vec()));
    assert_eq!(server.content("disk/next/1"), None);
    assert_eq!(server.staged(), 0);
}

#[test]
fn a_quota_leaves_the_destination() {
    const FOLDER: u64 = 4096;
    for driver in available_drivers() {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name);
        for folder in ["in/old", "large", "small"] {
            std::fs::create_dir_all(path(folder)).expect("a folder");
        }
        std::fs::write(path("in/old/1"), [0; 7500]).expect("written");
        std::fs::write(path("large/1"), [1; 20_000]).expect("written");
        std::fs::write(path("small/2"), [2; 10_000]).expect("written");
        let pool = BlockingPool::threads(2, 100);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder");
        let quota = Quota {
            prefix: Key::parse(b"in").ok(),
            bytes_max: 33_000,
        };
        let store = QuotaStore::new(folder, vec![quota]).expect("a count");
        let used = |expected: u64| assert_eq!(store.used()[0].1, expected);
        let shared = Arc::new(store.clone());
        let server = &mut TestServer::on_store(shared, &with_folders(), driver);
        for method in ["COPY", "MOVE"] {
            let refused = send(server, method, "/large/", "/in/old/");
            let text = "the object does not fit into what is left of the quota of this path\n";
            assert_eq!((refused.status, refused.text()), (507, text), "{method}");
            used(FOLDER + 7500);
            assert_eq!(server.get("/in/old/1").body, [0; 7500]);
            assert_eq!(server.get("/large/1").body.len(), 20_000);
            // The quota itself is on the destination.
            let refused = send(server, method, "/small/", "/in/");
            assert_eq!(refused.status, 501, "{method}");
            assert_eq!(server.get("/in/old/1").body, [0; 7500]);
        }
        assert_eq!(send(server, "COPY", "/small/", "/in/old/").status, 204);
        used(FOLDER + 10_000);
        assert_eq!(server.put("/in/old/3", &[3; 100]).status, 201);
        assert_eq!(send(server, "MOVE", "/small/", "/in/old/").status, 204);
        used(FOLDER + 10_000);
        assert_eq!(server.get("/in/old/3").status, 404);
        // Within the quota, nothing needs more room.
        assert_eq!(server.put("/in/new/4", &[4; 12_500]).status, 201);
        used(2 * FOLDER + 22_500);
        assert_eq!(send(server, "MOVE", "/in/new/", "/in/old/").status, 204);
        used(FOLDER + 12_500);
        store.count().expect("a count");
        used(FOLDER + 12_500);
    }
}

/// A store that cannot replace a folder in one step refuses it.
#[test]
fn a_store_that_cannot_replace_leaves_the_destination() {
    let cache = TempDir::new();
    let folder = TempDir::new();
    let pool = BlockingPool::threads(2, 64);
    let options = EdgeOptions {
        cache: CacheOptions {
            origin: "the store of a test".to_owned(),
            bytes_max: 1 << 30,
            descriptors: Descriptors::default(),
            report: Arc::new(|_| {}),
        },
        fresh: Duration::from_secs(3600),
        stale: Duration::from_secs(3600),
        block_bytes: EdgeOptions::BLOCK_BYTES,
    };
    let behind = Folder::open(folder.path(), pool.clone(), FolderOptions::default());
    let behind = Arc::new(behind.expect("a folder"));
    let edge = EdgeStore::open(behind, cache.path(), pool, options).expect("an edge");
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(edge)];
    for store in stores {
        for options in [with_folders(), webdav()] {
            let server =
                &mut TestServer::on_store(store.clone(), &options, DriverPreference::Epoll);
            for (name, content) in [("/new/1", b"new"), ("/old/1", b"old"), ("/old/x/3", b"old")] {
                server.put(name, content);
            }
            for method in ["COPY", "MOVE"] {
                let reply = send(server, method, "/new/", "/old/");
                assert_eq!(reply.status, 501, "{method}: {}", reply.text());
                assert_eq!(server.get("/old/1").text(), "old");
                assert_eq!(server.get("/old/x/3").text(), "old");
                assert_eq!(server.get("/new/1").text(), "new");
            }
        }
    }
}
