//! States of Terraform and OpenTofu: the requests that OpenTofu 1.12 sends, and those of others.

use crate::common::webdav::{LOCK_INFO, webdav};
use crate::common::*;
use onrush::DriverPreference;
use onrush_files::FilesOptions;
use onrush_store::testing::MemoryStore;
use std::sync::Arc;
use testing_s3::Bucket;

const JSON: &str = "Content-Type: application/json";
const ANN: &str = r#"{"ID":"ann-1","Operation":"OperationTypeApply","Info":"","Who":"ann@host"}"#;
const BOB: &str = r#"{"ID":"bob-2","Operation":"OperationTypePlan","Info":"","Who":"bob@host"}"#;
const STATE: &[u8] = br#"{"version":4,"serial":1}"#;

fn states() -> FilesOptions {
    FilesOptions {
        terraform_state: true,
        ..writable()
    }
}

fn change(server: &mut TestServer, method: &str, path: &str, info: &str) -> Reply {
    server.request(&format!("{method} {path}\n{JSON}"), info.as_bytes())
}

fn update(server: &mut TestServer, path: &str, content: &[u8]) -> u16 {
    server
        .request(&format!("POST {path}\n{JSON}"), content)
        .status
}

/// Everything that OpenTofu does, with another client beside it.
fn use_a_state(server: &mut TestServer) {
    let path = "/infra/prod.tfstate";
    assert_eq!(server.get(path).status, 404);
    let locked = change(server, "LOCK", path, ANN);
    assert_eq!((locked.status, locked.text()), (200, ANN));
    assert_eq!(locked.field("content-type"), Some("application/json"));
    assert_eq!(change(server, "LOCK", path, ANN).status, 200, "asked again");
    let held = change(server, "LOCK", path, BOB);
    assert_eq!((held.status, held.text()), (423, ANN));
    assert_eq!(held.field("content-type"), Some("application/json"));
    assert_eq!(server.get(path).status, 404, "a lock is no state");

    assert_eq!(update(server, &format!("{path}?ID=bob-2"), b"{}"), 423);
    assert_eq!(update(server, path, b"{}"), 423);
    assert_eq!(update(server, &format!("{path}?ID=ann%2D1"), STATE), 201);
    assert_eq!(server.put(&format!("{path}?ID=bob-2"), b"{}").status, 423);
    assert_eq!(server.put(path, b"{}").status, 423);
    assert_eq!(server.put(&format!("{path}?ID=ann-1"), STATE).status, 204);
    assert_eq!(server.delete(path).status, 423);
    let got = server.get(path);
    assert_eq!((got.status, &got.body[..]), (200, STATE));
    let digest = format!("{path}?ID=ann-1\nContent-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==");
    assert_eq!(update(server, &digest, STATE), 400, "the digest of nothing");

    let other = change(server, "UNLOCK", path, BOB);
    assert_eq!((other.status, other.text()), (409, ANN));
    assert_eq!(
        change(server, "UNLOCK", path, r#"{"ID":"ann-1"}"#).status,
        200
    );
    assert_eq!(
        change(server, "UNLOCK", path, ANN).status,
        200,
        "asked again"
    );
    assert_eq!(change(server, "LOCK", path, BOB).status, 200);
    assert_eq!(update(server, &format!("{path}?ID=ann-1"), b"{}"), 423);
    assert_eq!(server.delete(&format!("{path}?ID=bob-2")).status, 200);
    assert_eq!(change(server, "UNLOCK", path, BOB).status, 200);
    // Without a lock (`-lock=false`), the ID does not matter.
    assert_eq!(update(server, path, STATE), 201);
    assert_eq!(update(server, &format!("{path}?ID=gone"), STATE), 204);
    assert_eq!(server.delete(path).status, 200);
    assert_eq!(server.get(path).status, 404);
}

#[test]
fn a_state_is_changed_by_the_holder_of_its_lock() {
    on_all_backends(&states(), use_a_state);
    on_all_backends(
        &FilesOptions {
            webdav: true,
            ..states()
        },
        use_a_state,
    );
    let store = Arc::new(MemoryStore::new());
    let epoll = DriverPreference::Epoll;
    use_a_state(&mut TestServer::on_store(store, &states(), epoll));
}

/// Servers of one bucket respect the locks of each other.
#[test]
fn a_lock_holds_for_all_servers_of_a_bucket() {
    let bucket = Bucket::new();
    let server = || {
        let store = Arc::new(bucket.store("s3://bucket/states"));
        TestServer::on_store(store, &states(), DriverPreference::Epoll)
    };
    let (mut one, mut other) = (server(), server());
    use_a_state(&mut one);
    use_a_state(&mut other);
    assert_eq!(change(&mut one, "LOCK", "/a.tfstate", ANN).status, 200);
    let held = change(&mut other, "LOCK", "/a.tfstate", BOB);
    assert_eq!((held.status, held.text()), (423, ANN));
    assert_eq!(update(&mut other, "/a.tfstate", STATE), 423);
    assert_eq!(update(&mut other, "/a.tfstate?ID=ann-1", STATE), 201);
    assert_eq!(change(&mut other, "UNLOCK", "/a.tfstate", ANN).status, 200);
    assert_eq!(change(&mut one, "LOCK", "/a.tfstate", BOB).status, 200);
}

/// Locks are no objects that a quota counts, so their number has a limit, and a client has a share.
#[test]
fn the_number_of_locks_is_limited() {
    let mut server = TestServer::simulated("/", &states(), 1);
    let server = &mut server;
    let folder = ".onrush/state/terraform";
    let locked = |server: &mut TestServer, name: &str| {
        let response = change(server, "LOCK", &format!("/{name}.tfstate"), ANN);
        (response.status, response.text().to_owned())
    };
    // Of another server, or of before a start.
    for number in 1..=9_990 {
        server.add(&format!("{folder}/{number}"), b"x");
    }
    for name in ["a", "b", "c", "d", "e", "a"] {
        assert_eq!(locked(server, name), (200, ANN.to_owned()), "{name}");
    }
    let own = (429, "this client has too many locks of states\n".to_owned());
    assert_eq!(locked(server, "f"), own);
    assert_eq!(change(server, "LOCK", "/a.tfstate", BOB).status, 423);
    assert_eq!(change(server, "UNLOCK", "/a.tfstate", ANN).status, 200);
    assert_eq!(locked(server, "f").0, 200);
    assert_eq!(locked(server, "a"), own);
    // Another server releases one, which is found here when it matters.
    let name = <sha2::Sha256 as sha2::Digest>::digest("f.tfstate");
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let locks = server.root().open_dir(folder.as_bytes()).expect("a folder");
    locks.unlink(name.as_bytes()).expect("its lock");
    assert_eq!(locked(server, "a").0, 200);
    for number in 9_991..=9_995 {
        server.add(&format!("{folder}/{number}"), b"x");
    }
    let all = (503, "there are too many locks of states\n".to_owned());
    assert_eq!(locked(server, "f"), all);
}

#[test]
fn a_lock_outlives_the_server() {
    for driver in drivers() {
        let mut server = TestServer::real("/", &states(), driver);
        assert_eq!(change(&mut server, "LOCK", "/a.tfstate", ANN).status, 200);
        server.files = server.files.with_options(states());
        server.restart(driver);
        let held = change(&mut server, "LOCK", "/a.tfstate", BOB);
        assert_eq!((held.status, held.text()), (423, ANN));
        // It is nothing that clients can reach.
        let listing = server.request("GET /\nAccept: application/json", b"");
        assert!(
            listing.text().contains("\"entries\":[]"),
            "{}",
            listing.text()
        );
    }
}

/// The commit looks for the lock once more: another client may have broken it during a long upload.
#[test]
fn an_update_whose_lock_was_broken_is_refused_at_its_end() {
    on_all_backends(&states(), |server| {
        assert_eq!(update(server, "/a.tfstate", STATE), 201);
        assert_eq!(change(server, "LOCK", "/a.tfstate", ANN).status, 200);
        let mut connection = server.connect();
        let head = "POST /a.tfstate?ID=ann-1 HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\
                    Expect: 100-continue\r\nConnection: close\r\n\r\n";
        server.send(&mut connection, head.as_bytes());
        let has_head = |all: &[u8]| all.ends_with(b"\r\n\r\n");
        let begun = server.receive_until(&mut connection, has_head);
        assert!(begun.starts_with(b"HTTP/1.1 100 "), "{begun:?}");
        assert_eq!(change(server, "UNLOCK", "/a.tfstate", ANN).status, 200);
        assert_eq!(change(server, "LOCK", "/a.tfstate", BOB).status, 200);
        server.send(&mut connection, &[b' '; 100]);
        let response = server.receive(&mut connection);
        assert!(response.starts_with(b"HTTP/1.1 423 "), "{response:?}");
        assert_eq!(server.get("/a.tfstate").body, STATE);
    });
}

/// No way around a lock: what has no ID does not change a state.
#[test]
fn nothing_else_changes_a_state() {
    let options = FilesOptions {
        terraform_state: true,
        ..webdav()
    };
    on_all_backends(&options, |server| {
        server.put("/other", b"other");
        assert_eq!(update(server, "/a.tfstate", STATE), 201);
        let form = "--b\r\nContent-Disposition: form-data; name=f; filename=b.tfstate\r\n\r\nx\r\n\
                    --b--\r\n";
        for (request, body, status) in [
            ("COPY /other\nDestination: /a.tfstate", "", 403),
            ("MOVE /other\nDestination: /a.tfstate", "", 403),
            ("MOVE /a.tfstate\nDestination: /free", "", 403),
            ("COPY /a.tfstate\nDestination: /copy", "", 201),
            (
                "POST /\nContent-Type: multipart/form-data; boundary=b",
                form,
                403,
            ),
            ("LOCK /b.tfstate", LOCK_INFO, 403),
            (
                "POST /\nTus-Resumable: 1.0.0\nUpload-Length: 1\nUpload-Metadata: filename \
                 Yi50ZnN0YXRl",
                "",
                403,
            ),
        ] {
            let reply = server.request(request, body.as_bytes());
            assert_eq!(reply.status, status, "{request}: {}", reply.text());
        }
        assert_eq!(server.get("/a.tfstate").body, STATE);
        assert_eq!(server.get("/b.tfstate").status, 404);
        // A draft upload of a state is a PUT of the whole.
        let part = server.request("PUT /a.tfstate\nUpload-Complete: ?1", b"{}");
        assert_eq!(part.status, 204);
        // WebDAV has locks of its own, also for a state, and both hold.
        let dav = server.request(
            "LOCK /a.tfstate\nContent-Type: text/xml",
            LOCK_INFO.as_bytes(),
        );
        assert_eq!(dav.status, 200);
        let token = dav.field("lock-token").expect("a token").to_owned();
        assert_eq!(update(server, "/a.tfstate", STATE), 423);
        assert_eq!(change(server, "LOCK", "/a.tfstate", ANN).status, 200);
        let with = format!("/a.tfstate?ID=ann-1\nIf: ({token})");
        assert_eq!(update(server, &with, STATE), 204);
        assert_eq!(
            update(server, &format!("/a.tfstate\nIf: ({token})"), STATE),
            423
        );
        // Other objects have only those of WebDAV.
        assert_eq!(change(server, "LOCK", "/other", ANN).status, 400);
    });
}

/// A change of a folder is none of the states in it.
#[test]
fn states_stay_when_their_folder_is_changed() {
    let options = FilesOptions {
        terraform_state: true,
        ..webdav()
    };
    on_all_backends(&options, |server| {
        assert_eq!(update(server, "/infra/deep/a.tfstate", STATE), 201);
        assert_eq!(server.put("/infra/deep/x", b"x").status, 201);
        assert_eq!(server.put("/old/y", b"y").status, 201);
        assert_eq!(
            change(server, "LOCK", "/infra/deep/a.tfstate", ANN).status,
            200
        );
        for (request, status) in [
            ("MOVE /infra/\nDestination: /free/", 403),
            ("MOVE /old/\nDestination: /infra/", 403),
            ("COPY /old/\nDestination: /infra/", 403),
            ("COPY /infra/\nDestination: /copy/", 207),
            ("DELETE /infra/", 207),
        ] {
            let reply = server.request(request, b"");
            assert_eq!(reply.status, status, "{request}: {}", reply.text());
            if status == 207 {
                assert!(reply.text().contains("403"), "{}", reply.text());
            }
            let state = server.get("/infra/deep/a.tfstate");
            assert_eq!(state.body, STATE, "{request}");
        }
        assert_eq!(server.get("/copy/deep/x").body, b"x");
        assert_eq!(server.get("/copy/deep/a.tfstate").status, 404);
        assert_eq!(server.get("/infra/deep/x").status, 404);
        assert_eq!(server.delete("/infra/deep/a.tfstate").status, 423);
        assert_eq!(server.delete("/infra/deep/a.tfstate?ID=ann-1").status, 200);
        assert_eq!(server.delete("/infra/").status, 204);
        // Without a state, a folder moves.
        let moved = server.request("MOVE /old/\nDestination: /new/", b"");
        assert_eq!(moved.status, 201);
    });
}

#[test]
fn malformed_locks_and_other_names_are_refused() {
    on_all_backends(&states(), |server| {
        for info in ["", "x", "[]", "{}", r#"{"ID":""}"#, r#"{"ID":7}"#] {
            for method in ["LOCK", "UNLOCK"] {
                let reply = change(server, method, "/a.tfstate", info);
                assert_eq!(reply.status, 400, "{method} {info}");
            }
        }
        let long = format!("{{\"ID\":\"{}\"}}", "x".repeat(9_000));
        assert_eq!(change(server, "LOCK", "/a.tfstate", &long).status, 413);
        for path in ["/a", "/a.tfstate/", "/", "/a.tfstate.txt", "/.x.tfstate"] {
            let reply = change(server, "LOCK", path, ANN);
            assert_eq!(reply.status, 405, "{path}");
            let allow = reply.field("allow").expect("the methods");
            assert!(!allow.contains("LOCK"), "{path}: {allow}");
        }
        let options = server.request("OPTIONS /a.tfstate", b"");
        assert!(options.field("allow").expect("methods").contains("UNLOCK"));
    });
    // A sink has no states.
    let sink = FilesOptions {
        sink: true,
        ..states()
    };
    on_all_backends(&sink, |server| {
        assert_eq!(change(server, "LOCK", "/a.tfstate", ANN).status, 405);
        assert_eq!(server.put("/a.tfstate", STATE).status, 204);
        assert_eq!(server.get("/a.tfstate").status, 404);
    });
    on_all_backends(&writable(), |server| {
        assert_eq!(change(server, "LOCK", "/a.tfstate", ANN).status, 405);
        assert_eq!(update(server, "/a.tfstate", STATE), 415);
        assert_eq!(server.put("/a.tfstate", STATE).status, 201);
        assert_eq!(server.delete("/a.tfstate").status, 204);
    });
}
