//! Clients that send dot segments, against the real binary: apt with a flat repository, rclone with
//! names that need a `./` prefix, and curl with unchanged paths.

use crate::program::{Folder, Server, TIMEOUT, curl, drivers, is_installed, output_within};
use std::path::Path;
use std::process::Command;

/// A package of the repository. apt checks only the size and the digest of a package before it is
/// installed.
const PACKAGE: &[u8] = b"this is no real package\n";

/// Runs apt with its own configuration, state and cache under `root`. Needs no privileges.
fn apt(root: &Path, arguments: &[&str]) -> String {
    let shown = root.display();
    let config = format!(
        "Dir::State \"{shown}/state\";\n\
         Dir::State::status \"{shown}/status\";\n\
         Dir::Cache \"{shown}/cache\";\n\
         Dir::Etc \"{shown}/etc\";\n\
         APT::Sandbox::User \"\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Update::Error-Mode \"any\";\n\
         Acquire::http::Proxy::127.0.0.1 \"DIRECT\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"0\";\n"
    );
    let file = root.join("apt.conf");
    std::fs::write(&file, config).expect("written");
    let mut command = Command::new("apt-get");
    command
        .args(arguments)
        .current_dir(root)
        .env("APT_CONFIG", file);
    let output = output_within(&mut command, 2 * TIMEOUT);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "apt-get {arguments:?}: {said}");
    said
}

#[test]
fn apt_reads_a_flat_repository() {
    if !is_installed("apt-get") || !is_installed("sha256sum") {
        return;
    }
    for driver in drivers() {
        let served = Folder::new();
        let package = served.file("hello_1.0_all.deb", PACKAGE);
        let output = output_within(Command::new("sha256sum").arg(&package), TIMEOUT);
        let sum = String::from_utf8(output.stdout).expect("hexadecimal");
        let sum = sum.split_whitespace().next().expect("a digest");
        let size = PACKAGE.len();
        let packages = format!(
            "Package: hello\nVersion: 1.0\nArchitecture: all\nMaintainer: a test <n@example.org>\n\
             Filename: ./hello_1.0_all.deb\nSize: {size}\nSHA256: {sum}\nDescription: a test\n\n"
        );
        served.file("Packages", packages);
        let server = Server::start(served.path(), &["--driver", driver, "--access-log", "on"]);

        let root = Folder::new();
        for folder in [
            "state/lists/partial",
            "cache/archives/partial",
            "etc",
            "here",
        ] {
            std::fs::create_dir_all(root.path().join(folder)).expect("a folder");
        }
        root.file("status", "");
        let source = format!("deb [trusted=yes] {}/ ./\n", server.url);
        root.file("etc/sources.list", source);
        apt(root.path(), &["update"]);
        apt(root.path(), &["download", "hello"]);
        let fetched = std::fs::read(root.path().join("hello_1.0_all.deb"));
        assert_eq!(fetched.expect("downloaded"), PACKAGE, "{driver}");
        // Served without a redirect, because apt follows few redirects.
        let log = server.logs("hello_1.0_all.deb");
        assert!(log.contains("/./Packages"), "{log}");
        assert!(!log.contains("status=301"), "{log}");
    }
}

#[test]
fn rclone_copies_names_that_need_a_dot_segment() {
    if !is_installed("rclone") {
        return;
    }
    let names = ["plain.txt", "colon:x.txt", "a b/c:d", "dots..", "%41"];
    for driver in drivers() {
        let served = Folder::new();
        for name in names {
            served.file(name, name);
        }
        let server = Server::start(served.path(), &["--driver", driver]);
        let copy = Folder::new();
        let mut command = Command::new("rclone");
        command.args([
            "copy",
            "--config",
            "/dev/null",
            "--http-url",
            &server.url,
            ":http:",
        ]);
        let output = output_within(command.arg(copy.path()), 2 * TIMEOUT);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        for name in names {
            let content = std::fs::read(copy.path().join(name));
            assert_eq!(content.expect(name), name.as_bytes(), "{driver}: {said}");
        }
    }
}

#[test]
fn curl_gets_one_object_by_every_spelling() {
    if !is_installed("curl") {
        return;
    }
    for driver in drivers() {
        let served = Folder::new();
        served.file("colon:x.txt", "content");
        served.file("a/b", "below");
        let server = Server::start(served.path(), &["--driver", driver]);
        for (path, expected) in [
            ("/./colon:x.txt", "200 content"),
            ("/.//colon%3Ax.txt", "200 content"),
            ("/a/../colon:x.txt", "200 content"),
            ("/a/%2e%2e/colon:x.txt", "200 content"),
            ("//a/./b", "200 below"),
            ("/./a", "301 "),
        ] {
            let url = format!("{}{path}", server.url);
            let write = ["-w", "%{stderr}%{http_code}", "--path-as-is"];
            let output = output_within(
                Command::new("curl")
                    .args(["-sS", "--max-time", "60"])
                    .args(write)
                    .arg(&url),
                2 * TIMEOUT,
            );
            let status = String::from_utf8_lossy(&output.stderr).into_owned();
            let body = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(format!("{status} {body}"), expected, "{driver}: {path}");
        }
        let followed = curl(&["-L", "--path-as-is", &format!("{}/./a", server.url)]);
        assert!(followed.contains("b"), "{followed}");
        let url = format!("{}/../a/b", server.url);
        let above = curl(&[
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--path-as-is",
            &url,
        ]);
        assert_eq!(above, "400");
    }
}
