//! The binary with limits on what is stored.

use crate::program::users::request;
use crate::program::{Folder, Server, curl, drivers, is_installed, onrush, output};

/// The status of a PUT by curl of a file, and the text of the response.
fn put(server: &Server, path: &str, source: &str) -> (String, String) {
    let url = format!("{}{path}", server.url);
    let response = curl(&["-T", source, "-w", "\n%{http_code}", &url]);
    let (text, status) = response.rsplit_once('\n').expect("a status");
    (status.to_owned(), text.to_owned())
}

#[test]
fn objects_and_free_space_have_limits() {
    if !is_installed("curl") {
        return;
    }
    let other = Folder::new();
    let source = other.file("source", vec![b'x'; 2_000_000]);
    let source = source.to_str().expect("UTF-8");
    for driver in drivers() {
        let folder = Folder::new();
        let start = |more: &[&str]| {
            let arguments = [&["--allow", "put", "--driver", driver], more].concat();
            Server::start(folder.path(), &arguments)
        };
        let server = start(&["--max-object-size", "1MiB"]);
        let (status, text) = put(&server, "/a", source);
        assert_eq!(
            (&status[..], text.trim()),
            ("413", "the object is larger than 1048576 bytes")
        );
        drop(server);
        let server = start(&["--min-free", "8000TiB"]);
        assert_eq!(put(&server, "/a", source).0, "507");
        assert_eq!(request(&server, "PUT", "/a", "").0, 507);
        drop(server);
        let server = start(&["--min-free", "1B", "--max-object-size", "2000000"]);
        assert_eq!(put(&server, "/a", source).0, "201");
    }
}

#[test]
fn quotas_hold_after_a_restart() {
    if !is_installed("curl") {
        return;
    }
    let other = Folder::new();
    let source = other.file("source", vec![b'x'; 600_000]);
    let source = source.to_str().expect("UTF-8");
    for driver in drivers() {
        let folder = Folder::new();
        let quotas = [
            "--quota",
            "/=1MB,/in=500KB",
            "--admin",
            "same",
            "--driver",
            driver,
        ];
        let arguments = [&["--allow", "put,delete"], &quotas[..]].concat();
        let server = Server::start(folder.path(), &arguments);
        assert_eq!(put(&server, "/in/a", source).0, "507");
        assert_eq!(put(&server, "/a", source).0, "201");
        drop(server);
        let server = Server::start(folder.path(), &arguments);
        let (status, text) = put(&server, "/b", source);
        assert_eq!(
            (&status[..], text.trim()),
            (
                "507",
                "the object does not fit into what is left of the quota of this path"
            )
        );
        let metrics = server.get("/-/metrics");
        assert!(
            metrics.contains("onrush_quota_used_bytes{prefix=\"/\"} 600000"),
            "{metrics}"
        );
        assert!(
            metrics.contains("onrush_quota_max_bytes{prefix=\"/in\"} 500000"),
            "{metrics}"
        );
        assert_eq!(request(&server, "DELETE", "/a", "").0, 204);
        assert_eq!(put(&server, "/b", source).0, "201");
    }
    let mut command = onrush();
    command.args(["s3://bucket", "--quota", "/=1GiB"]);
    let said = output(&mut command);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("--quota needs a folder"), "{said}");
}
