//! Encodings, types and digests with curl, and storage errors, against the real binary.

use crate::program::{
    Folder, Server, TIMEOUT, curl, drivers, is_installed, onrush, output_within, pattern,
};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The output of a shell command.
fn shell(script: &str, argument: &Path) -> String {
    let mut command = Command::new("sh");
    let output = output_within(command.args(["-c", script, "sh"]).arg(argument), TIMEOUT);
    assert!(output.status.success(), "{script}");
    String::from_utf8(output.stdout).expect("text")
}

/// The status of an upload.
fn put(source: &Path, url: &str, fields: &[&str]) -> String {
    let mut arguments = vec!["-o", "/dev/null", "-w", "%{http_code}"];
    for field in fields {
        arguments.extend(["-H", field]);
    }
    let source = source.to_str().expect("UTF-8");
    arguments.extend(["-T", source, url]);
    curl(&arguments)
}

#[test]
fn metadata_of_an_upload_by_curl_is_returned() {
    if !is_installed("curl") || !is_installed("gzip") {
        return;
    }
    let folder = Folder::new();
    let content = pattern(5, 400_000);
    let plain = folder.file("plain", &content);
    let packed = folder.path().join("packed");
    shell("gzip -c \"$1\" > \"$1.gz\"", &plain);
    std::fs::rename(folder.path().join("plain.gz"), &packed).expect("moved");
    let back = folder.path().join("back");
    let back = back.to_str().expect("UTF-8");
    for driver in drivers() {
        let served = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let server = Server::start(served.path(), &flags);
        let url = format!("{}/data.bin", server.url);
        let fields = [
            "Content-Encoding: gzip",
            "Content-Type: application/x-test; a=b",
            "Cache-Control: max-age=5",
            "Content-Language: de",
            "Content-Disposition: attachment; filename=\"x\"",
        ];
        assert_eq!(put(&packed, &url, &fields), "201", "{driver}");
        drop(server);
        // They are stored with the file, not in the process.
        let server = Server::start(served.path(), &flags);
        let url = format!("{}/data.bin", server.url);
        let head = curl(&["-I", &url]);
        for field in fields {
            assert!(head.contains(&format!("{field}\r\n")), "{field}: {head}");
        }
        curl(&["--compressed", "-o", back, &url]);
        assert!(std::fs::read(back).expect("fetched") == content, "{driver}");
    }
}

#[test]
fn curl_uploads_with_digests_are_checked() {
    if !is_installed("curl") || !is_installed("openssl") {
        return;
    }
    let folder = Folder::new();
    let source = folder.file("source", pattern(6, 3_000_000));
    let other = folder.file("other", pattern(7, 3_000_000));
    let digest = |name: &str| {
        let script = format!("openssl dgst -{name} -binary \"$1\" | openssl base64 -A");
        shell(&script, &source)
    };
    let md5 = format!("Content-MD5: {}", digest("md5"));
    let content = format!("Content-Digest: sha-256=:{}:", digest("sha256"));
    let repr = format!("Repr-Digest: sha-512=:{}:, x=:AA==:", digest("sha512"));
    for driver in drivers() {
        let served = Folder::new();
        let server = Server::start(served.path(), &["--allow", "put", "--driver", driver]);
        let url = format!("{}/object", server.url);
        let chunked = "Transfer-Encoding: chunked";
        let all = [&md5[..], &content, &repr];
        let ways: [&[&str]; 5] = [&all[..1], &all[1..2], &all[2..], &all, &[all[1], chunked]];
        for fields in ways {
            assert_eq!(put(&other, &url, fields), "400", "{driver}: {fields:?}");
            assert!(!served.path().join("object").exists(), "{fields:?}");
            assert_eq!(put(&source, &url, fields), "201", "{driver}: {fields:?}");
            let stored = std::fs::read(served.path().join("object")).expect("stored");
            assert!(stored == pattern(6, 3_000_000));
            std::fs::remove_file(served.path().join("object")).expect("removed");
        }
        assert_eq!(put(&source, &url, &["Content-MD5: x"]), "400");
        assert_eq!(put(&source, &url, &["Repr-Digest: sha-256=x"]), "400");
    }
}

#[test]
fn types_come_from_the_configuration_file() {
    let folder = Folder::new();
    folder.file("a.ts", "x");
    folder.file("a.js", "x");
    let config = Folder::new();
    let file = config.file("onrush.toml", "[types]\nts = 'text/x-typescript'\n");
    let file = file.to_str().expect("UTF-8");
    let server = Server::start(folder.path(), &["--config", file]);
    let response = server.get("/a.ts");
    assert!(
        response.contains("Content-Type: text/x-typescript\r\n"),
        "{response}"
    );
    let response = server.get("/a.js");
    assert!(
        response.contains("text/javascript; charset=utf-8\r\n"),
        "{response}"
    );
    let wrong = config.file("wrong.toml", "[types]\nts = 'typescript'\n");
    let mut command = onrush();
    let output = output_within(command.arg("--config").arg(wrong), TIMEOUT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("wrong.toml:2: ts: \"typescript\" is not a media type"),
        "{said}"
    );
}

/// A server on a file system of 512 KiB in its own mount namespace. `None` if this is not
/// permitted.
fn on_a_small_disk(folder: &Folder, driver: &str) -> Option<Server> {
    let mut probe = Command::new("unshare");
    let probe = probe.args(["-rm", "mount", "-t", "tmpfs", "none"]);
    if !probe
        .arg(folder.path())
        .output()
        .is_ok_and(|output| output.status.success())
    {
        println!("skipped: no mount namespace can be made");
        return None;
    }
    let script = "mount -t tmpfs -o size=512k none \"$1\" || exit 9\n\
         exec \"$2\" \"$1\" --port 0 --allow put,delete --driver \"$3\" < /dev/null";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh"]);
    command.arg(folder.path());
    command.args([env!("CARGO_BIN_EXE_onrush"), driver]);
    Some(Server::run(command))
}

#[test]
fn storage_errors_are_logged_and_reported() {
    if !is_installed("curl") {
        return;
    }
    let source = Folder::new();
    let large = source.file("large", pattern(8, 1 << 20));
    let small = source.file("small", "x");
    for driver in drivers() {
        let folder = Folder::new();
        let Some(server) = on_a_small_disk(&folder, driver) else {
            return;
        };
        let url = |name: &str| format!("{}/{name}", server.url);
        assert_eq!(put(&small, &url("small"), &[]), "201");
        // Refused when announced, and while it is received.
        assert_eq!(put(&large, &url("a%20b%0A"), &[]), "507");
        assert_eq!(
            put(&large, &url("c"), &["Transfer-Encoding: chunked"]),
            "507"
        );
        let log = server.logs("key=c ");
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("disk is full"))
            .collect();
        assert_eq!(lines.len(), 2, "{log}");
        for line in lines {
            assert!(line.contains("WARN") && line.contains("errno=28"), "{line}");
            assert!(line.contains("No space left on device"), "{line}");
        }
        assert!(log.contains("a%20b%0A"), "{log}");
        let begin = Instant::now();
        let many = format!("{}/many[1-40]", server.url);
        let large = large.to_str().expect("UTF-8");
        curl(&["-T", large, "-o", "/dev/null", &many]);
        let windows = begin.elapsed().as_secs() as usize + 2;
        let lines = server.log().matches("disk is full").count() - 2;
        assert!(
            (1..=40.min(windows * 10)).contains(&lines),
            "{lines} in {windows} s"
        );

        assert_eq!(curl(&[&url("small")]), "x", "reading still works");
    }
}
