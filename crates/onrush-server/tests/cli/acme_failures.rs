//! Automatic certificates of the real binary while the authority fails: no needless orders, and no
//! lost ones.

use crate::acme_server::{AcmeServer, Fault};
use crate::program::certificates::Authority;
use crate::program::{Folder, Server, TIMEOUT, onrush, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const NAME: &str = "files.example";

/// Serves `folder` with a certificate from this authority.
fn serve(authority: &AcmeServer, folder: &Folder) -> Server {
    serve_with(authority, folder, &["--acme-ca", &authority.ca])
}

fn serve_with(authority: &AcmeServer, folder: &Folder, arguments: &[&str]) -> Server {
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    command.args(["--host", NAME, "--acme", NAME]);
    command.args(["--acme-directory", &authority.directory]);
    command.args(arguments);
    Server::run(command)
}

fn path(folder: &Folder, name: &str) -> PathBuf {
    folder.path().join(".onrush/acme").join(name)
}

fn failures(folder: &Folder) -> u64 {
    let text = fs::read(path(folder, "attempts.json")).expect("a file");
    let attempts: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    attempts["failures"].as_u64().expect("a number")
}

/// Waits until the log has `text` this many times.
fn logs_times(server: &Server, text: &str, times: usize) {
    wait_until(|| server.log().matches(text).count() >= times);
}

const FAILED: &str = "no certificate could be obtained";
const OBTAINED: &str = "a certificate was obtained";
const CONTINUED: &str = "the order of a certificate is being continued";
const AT_ONCE: &str = "; SIGHUP orders it at once";
const ASKED: &str = "; the authority has asked for this pause";

#[test]
fn a_requested_certificate_is_not_ordered_again() {
    for fault in [Fault::CertificateUnavailable, Fault::CertificateNotUtf8] {
        let (authority, folder) = (AcmeServer::start(NAME, fault), Folder::new());
        let server = serve(&authority, &folder);
        logs_times(&server, FAILED, 2);
        let order = path(&folder, "order.json");
        let mode = fs::metadata(&order).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(server); // It is killed.
        let server = serve(&authority, &folder);
        // If it was killed within an attempt, the next one would wait.
        server.signal("HUP");
        server.logs(CONTINUED);
        server.logs(FAILED);
        authority.set(Fault::None);
        server.logs(OBTAINED);
        server.logs("certificates loaded again");
        let counts = ["POST /new", "POST /finalize"].map(|request| authority.count(request));
        assert_eq!(counts, [1, 1], "{fault:?}");
        assert!(!order.exists() && !path(&folder, "attempts.json").exists());
    }
}

#[test]
fn a_request_that_was_lost_is_repeated() {
    let (authority, folder) = (AcmeServer::start(NAME, Fault::FinalizeLost), Folder::new());
    let server = serve(&authority, &folder);
    server.logs(FAILED);
    authority.set(Fault::None);
    server.logs(OBTAINED);
    assert_eq!(authority.count("POST /new"), 1);
}

#[test]
fn an_order_that_the_authority_has_ended_is_not_continued() {
    let (authority, folder) = (
        AcmeServer::start(NAME, Fault::FinalizeInvalid),
        Folder::new(),
    );
    let server = serve(&authority, &folder);
    logs_times(&server, FAILED, 2);
    wait_until(|| !path(&folder, "order.json").exists());
    assert_eq!((failures(&folder), authority.count("POST /new")), (1, 1));
    authority.set(Fault::None);
    server.signal("HUP");
    server.logs(OBTAINED);
    assert_eq!(authority.count("POST /new"), 2);
}

#[test]
fn a_certificate_of_the_future_is_not_installed() {
    let (authority, folder) = (
        AcmeServer::start(NAME, Fault::FutureCertificate),
        Folder::new(),
    );
    let server = serve(&authority, &folder);
    let log = server.logs(AT_ONCE);
    let reason = "it is not valid before 2090-01-01 00:00:00 UTC; the clock of this machine may be";
    assert!(log.contains(reason), "{log}");
    server.signal("HUP");
    server.logs(CONTINUED);
    logs_times(&server, reason, 2);
    assert!(!path(&folder, "certificate.pem").exists());
    assert_eq!(authority.count("POST /finalize"), 1);
}

#[test]
fn a_signal_orders_at_once_after_a_failure() {
    let (authority, folder) = (AcmeServer::start(NAME, Fault::Refused), Folder::new());
    let server = serve(&authority, &folder);
    let log = server.logs(FAILED);
    let line = log.lines().find(|line| line.contains(FAILED));
    assert!(line.expect("a line").contains(AT_ONCE), "{log}");
    drop(server);
    // A restart does not.
    let server = serve(&authority, &folder);
    server.logs(&format!(
        "the next certificate is ordered at this time{AT_ONCE}"
    ));
    assert_eq!(authority.count("POST /new"), 1);
    server.signal("HUP");
    server.logs(FAILED);
    assert_eq!(failures(&folder), 2);
    authority.set(Fault::None);
    server.signal("HUP");
    server.logs(OBTAINED);
    // It is not due now.
    server.signal("HUP");
    logs_times(&server, "the next certificate is ordered at this time", 3);
    assert_eq!(authority.count("POST /new"), 3);
}

#[test]
fn no_signal_ends_a_pause_that_the_authority_has_asked_for() {
    for (fault, request) in [
        (Fault::RateLimited, "POST /new"),
        // Its error is that of a proxy.
        (Fault::Down, "GET /dir"),
    ] {
        let (authority, folder) = (AcmeServer::start(NAME, fault), Folder::new());
        let server = serve(&authority, &folder);
        let log = server.logs(FAILED);
        let line = log.lines().find(|line| line.contains(FAILED));
        assert!(line.expect("a line").contains(ASKED), "{log}");
        authority.set(Fault::None);
        let next = format!("the next certificate is ordered at this time{ASKED}");
        server.signal("HUP");
        server.logs(&next);
        drop(server);
        let server = serve(&authority, &folder);
        server.logs(&next);
        server.signal("HUP");
        logs_times(&server, &next, 2);
        assert_eq!(authority.count(request), 1);
    }
}

#[test]
fn an_order_that_a_shutdown_interrupts_has_not_failed() {
    let (authority, folder) = (AcmeServer::start(NAME, Fault::Slow), Folder::new());
    let mut server = serve(&authority, &folder);
    wait_until(|| authority.count("POST /order") > 0);
    server.signal("TERM");
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0), "{}", server.log());
    assert!(!server.log().contains(FAILED), "{}", server.log());
    assert_eq!(failures(&folder), 0);
    authority.set(Fault::None);
    let server = serve(&authority, &folder);
    server.logs(OBTAINED);
}

#[test]
fn a_signal_before_the_first_certificate_is_no_error() {
    let (authority, folder) = (AcmeServer::start(NAME, Fault::Slow), Folder::new());
    let server = serve(&authority, &folder);
    server.logs("serving");
    server.signal("HUP");
    let log = server.logs("there is no certificate yet; the temporary one remains");
    assert!(!log.contains("ERROR"), "{log}");
    authority.set(Fault::None);
    server.logs("certificates loaded again");
    // Now it is one.
    fs::remove_file(path(&folder, "certificate.pem")).expect("removed");
    server.signal("HUP");
    server.logs("does not exist; the certificates in use remain");
}

#[test]
fn the_log_names_the_option_for_a_private_authority() {
    let (authority, folder) = (AcmeServer::start(NAME, Fault::None), Folder::new());
    let server = serve_with(&authority, &folder, &[]);
    server.logs("UnknownIssuer; --acme-ca names the certificates of a private authority;");
    drop(server);
    let other = Authority::new("another authority").file(&folder, "other.pem");
    let server = serve_with(&authority, &folder, &["--acme-ca", &other]);
    // If the first server was killed within an attempt, the next one would wait.
    server.signal("HUP");
    server.logs("UnknownIssuer; the file of --acme-ca does not have its authority;");
    drop(server);
    let server = serve(&authority, &folder);
    server.signal("HUP");
    server.logs(OBTAINED);
}

#[test]
fn the_log_says_that_another_process_orders() {
    let (authority, folder) = (AcmeServer::start(NAME, Fault::None), Folder::new());
    let lock = folder.file(".onrush/acme/lock", "");
    let lock = fs::File::options().write(true).open(lock).expect("opened");
    lock.lock().expect("locked");
    let server = serve(&authority, &folder);
    server.logs("another process orders the certificate of this folder; only that process");
    drop(lock);
    server.signal("HUP");
    server.logs(OBTAINED);
    // What the documents recommend for this process.
    let certificate = path(&folder, "certificate.pem");
    let certificate = certificate.to_str().expect("UTF-8");
    let arguments = ["--tls-cert", certificate, "--tls-key", certificate];
    Server::start(folder.path(), &arguments).logs(NAME);
}
