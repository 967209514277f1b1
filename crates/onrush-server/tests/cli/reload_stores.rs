//! SIGHUP: options whose effect is not in one response: caches, checksums, the end of the server.

use crate::program::{Folder, Server, TIMEOUT, drivers, onrush, output};
use std::io::Write;
use std::path::Path;

/// A server with `text` as its configuration, which [`reload`] replaces.
fn serve(folder: &Folder, config: &Path, text: &str, arguments: &[&str]) -> Server {
    std::fs::write(config, text).expect("written");
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    command.args(arguments).arg("--config").arg(config);
    Server::run(command)
}

fn reload(server: &Server, config: &Path, text: &str, applied: &str) {
    std::fs::write(config, text).expect("written");
    server.signal("HUP");
    server.logs(&format!("applied={applied}"));
}

fn put(server: &Server, name: &str) {
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: 7\r\n\r\ncontent"
    );
    let response = server.exchange(request.as_bytes());
    assert!(response.starts_with("HTTP/1.1 201"), "{response}");
}

#[test]
fn checksums_of_later_uploads_change() {
    let (folder, files) = (Folder::new(), Folder::new());
    let config = files.file("onrush.toml", "");
    let server = serve(&folder, &config, "allow = 'put'\n", &[]);
    put(&server, "first");
    let off = "allow = 'put'\nchecksums = false\n";
    reload(&server, &config, off, "checksums");
    put(&server, "second");
    let scrubbed = output(onrush().arg("scrub").arg(folder.path()));
    let text = String::from_utf8(scrubbed.stdout).expect("UTF-8");
    assert!(text.contains("no checksum: second\n"), "{text}");
    assert!(!text.contains("first"), "{text}");
}

/// The object that was read before is read from its file again, and is not kept.
#[test]
fn the_cache_of_small_objects_is_switched_off() {
    let (folder, files) = (Folder::new(), Folder::new());
    let config = files.file("onrush.toml", "");
    for driver in drivers() {
        folder.file("x", "content");
        let server = serve(&folder, &config, "", &["--driver", driver]);
        for _ in 0..3 {
            assert!(server.get("/x").ends_with("content"));
        }
        reload(&server, &config, "cache-size = 0\n", "cache-size");
        // Without the cache, a change of another program is visible at once, whenever it is made.
        for at in 0..20 {
            let content = format!("content {at}");
            folder.file("x", &content);
            assert!(server.get("/x").ends_with(&content), "{content}");
        }
    }
}

#[test]
fn copies_of_an_edge_are_confirmed_after_the_new_time() {
    let (data, files) = (Folder::new(), Folder::new());
    let old = data.file("x", "content");
    let edge = files.path().join("edge");
    let edge = edge.to_str().expect("UTF-8");
    let config = files.file("onrush.toml", "");
    let server = serve(&data, &config, "edge-fresh = '1h'\n", &["--edge", edge]);
    assert!(server.get("/x").ends_with("content"));
    std::fs::remove_file(old).expect("removed");
    reload(&server, &config, "edge-fresh = 0\n", "edge-fresh");
    assert!(server.get("/x").ends_with("content"), "it keeps its time");
    let new = data.file("y", "content");
    for _ in 0..2 {
        assert!(server.get("/y").ends_with("content"));
    }
    std::fs::remove_file(new).expect("removed");
    assert!(server.get("/y").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_server_ends_after_the_new_drain_timeout() {
    let (folder, files) = (Folder::new(), Folder::new());
    let config = files.file("onrush.toml", "");
    for driver in drivers() {
        let never = "allow = 'put'\ndrain-timeout = '1h'\n";
        let mut server = serve(&folder, &config, never, &["--driver", driver]);
        let mut client = server.connect();
        let head = "PUT /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\nc";
        client.write_all(head.as_bytes()).expect("sent");
        let soon = "allow = 'put'\ndrain-timeout = '1ms'\n";
        reload(&server, &config, soon, "drain-timeout");
        server.signal("TERM");
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0), "{driver}");
    }
}
