//! Clients of HTTP/2: whole objects in both directions, responses that come before the body of
//! their request was sent, and transfers in progress while the server restarts.

use crate::program::certificates::Authority;
use crate::program::users::UsersFile;
use crate::program::{Folder, SETUP_NIGHTLY, Server, TIMEOUT, output_within, tool, wait_until};
use std::path::Path;
use std::process::{Command, Output};

/// The processes that have replaced the one of this server.
fn successors(server: &Server) -> Vec<u32> {
    let log = server.log();
    let numbers = log.lines().filter_map(|line| {
        let begins = line.contains("restarting: ");
        let (_, number) = line.split_once("process=").filter(|_| begins)?;
        number.trim().parse().ok()
    });
    numbers.collect()
}

/// Runs a script of `http2_clients`. It must print `done`, and the process that it has restarted
/// must end by itself.
fn succeeds(name: &str) {
    let Some(python) = tool("python/http2/bin/python", SETUP_NIGHTLY) else {
        return;
    };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http2_clients");
    let (folder, guarded, files) = (Folder::new(), Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let (certificate, key) = authority.local(&files);
    let secure = ["--tls-cert", &certificate, "--tls-key", &key];
    let arguments = [&secure[..], &["--allow", "put"]].concat();
    let mut server = Server::start(folder.path(), &arguments);
    let users = UsersFile::new();
    users.add("alice", &["all"]);
    let arguments = [&arguments[..], &["--auth-file", users.path()]].concat();
    let with_users = Server::start(guarded.path(), &arguments);
    let url = |server: &Server| format!("https://localhost:{}", server.address().port());
    let mut command = Command::new(python);
    command.arg(scripts.join("client.py"));
    command.args([name, &url(&server), &ca, &url(&with_users)]);
    command.arg(server.child.id().to_string());
    let Output {
        status,
        stdout,
        stderr,
    } = output_within(&mut command, 6 * TIMEOUT);
    let successors = successors(&server);
    let ended = server.wait_for_exit(TIMEOUT);
    for process in &successors {
        let process = process.to_string();
        let _ = Command::new("kill").args(["-TERM", &process]).status();
        wait_until(|| !Path::new("/proc").join(&process).exists());
    }
    let out = String::from_utf8_lossy(&stdout);
    let err = String::from_utf8_lossy(&stderr);
    assert!(status.success() && out.ends_with("done\n"), "{out}{err}");
    assert_eq!((successors.len(), ended), (1, Some(0)), "{}", server.log());
}

#[test]
#[ignore = "nightly"] // httpx comes from PyPI
fn httpx_loses_nothing_while_the_server_restarts() {
    succeeds("httpx");
}

#[test]
#[ignore = "nightly"] // the newest libcurl comes from PyPI
fn libcurl_loses_nothing_while_the_server_restarts() {
    succeeds("libcurl");
}
