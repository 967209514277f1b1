//! The files of certificates of the real binary: errors at start, warnings, and loading them again
//! while requests are in progress.

use crate::program::certificates::{Authority, Client, Pair, text};
use crate::program::{Folder, Server, both_drivers, onrush, output, wait_until};
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The line of a server that does not start, and the exit code.
fn failure(arguments: &[&str]) -> (String, Option<i32>) {
    let folder = Folder::new();
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    let output = output(command.args(arguments));
    let log = String::from_utf8(output.stderr).expect("text");
    let lines: Vec<&str> = log.lines().collect();
    let [line] = &lines[..] else {
        panic!("{arguments:?}: {log}");
    };
    ((*line).to_owned(), output.status.code())
}

#[test]
fn each_kind_of_bad_file_is_one_clear_line() {
    let files = Folder::new();
    let authority = Authority::new("authority");
    let good = authority.issue(&["a.example"]);
    let (certificate, key) = good.write(&files, "good");
    let (other, other_key) = authority.issue(&["b.example"]).write(&files, "other");
    let file = |name: &str, content: &str| text(files.file(name, content));
    let folder = text(files.path().to_owned());
    let absent = format!("{folder}/absent");
    let empty = file("empty", "");
    let words = file("words", "not a certificate");
    let cut = file("cut", &good.certificate[..100]);
    let garbled = good.certificate.replace("MII", "M!!");
    let garbled = file("garbled", &garbled);
    let root_first = file("root-first", &(authority.pem() + &good.certificate));
    let stranger = Authority::new("stranger").pem();
    let wrong_chain = file("wrong-chain", &(good.certificate.clone() + &stranger));
    let two_keys = file("two-keys", &good.key.repeat(2));
    let encrypted = good.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let encrypted = file("encrypted", &encrypted);
    for (certificate, key, more, named, reason) in [
        (&absent, &key, None, &absent, "does not exist"),
        (&certificate, &absent, None, &absent, "does not exist"),
        (&folder, &key, None, &folder, "is a folder"),
        (&empty, &key, None, &empty, "is empty"),
        (&certificate, &empty, None, &empty, "is empty"),
        (&words, &key, None, &words, "no certificate"),
        (&key, &certificate, None, &key, "are the two files swapped?"),
        (
            &certificate,
            &certificate,
            None,
            &certificate,
            "a certificate, not a private key",
        ),
        (&cut, &key, None, &cut, "has no end"),
        (&garbled, &key, None, &garbled, "malformed"),
        (
            &certificate,
            &other_key,
            None,
            &other_key,
            "the certificate CN=",
        ),
        (&root_first, &key, None, &root_first, "first"),
        (&wrong_chain, &key, None, &wrong_chain, "did not sign"),
        (&certificate, &two_keys, None, &two_keys, "private keys"),
        (&certificate, &encrypted, None, &encrypted, "encrypted"),
        (
            &certificate,
            &key,
            Some(("--tls-client-ca", &absent)),
            &absent,
            "does not exist",
        ),
        (
            &certificate,
            &key,
            Some(("--tls-client-ca", &words)),
            &words,
            "no certificate",
        ),
        (
            &certificate,
            &key,
            Some(("--tls-ocsp", &absent)),
            &absent,
            "does not exist",
        ),
        (
            &certificate,
            &key,
            Some(("--tls-ocsp", &other)),
            &other,
            "OCSP",
        ),
    ] {
        let mut arguments = vec!["--tls-cert", certificate, "--tls-key", key];
        if let Some((flag, path)) = more {
            arguments.extend([flag, path.as_str()]);
        }
        // Loading is the same with each log format; the failure is then an event.
        let (line, code) = failure(&[&arguments[..], &["--log-level=error"]].concat());
        assert_eq!(code, Some(2), "{line}");
        assert!(line.starts_with("onrush: TLS: "), "{line}");
        assert!(line.contains(named.as_str()), "{reason}: {line}");
        assert!(line.contains(reason), "{reason}: {line}");
    }
    let (line, code) = failure(&["--tls-cert", &certificate]);
    assert!(line.contains("each certificate needs its key"), "{line}");
    assert_eq!(code, Some(2));
}

#[test]
fn a_self_signed_certificate_needs_a_folder_that_can_be_written() {
    let folder = Folder::new();
    folder.file(".onrush", "a file");
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0", "--tls-self-signed"]);
    let output = output(&mut command);
    let line = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.contains("onrush: tls-self-signed: cannot "), "{line}");
    assert!(line.contains(".onrush/tls"), "{line}");
}

#[test]
fn validity_is_a_warning() {
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let in_days = |days: u64| {
        let day = std::time::Duration::from_secs(days * 86_400);
        rcgen::date_time_ymd(1970, 1, 1) + since + day
    };
    for (begin, end, warning) in [
        (
            rcgen::date_time_ymd(2000, 1, 1),
            rcgen::date_time_ymd(2001, 2, 3),
            Some("expired at 2001-02-03 00:00:00 UTC"),
        ),
        (
            rcgen::date_time_ymd(2100, 1, 1),
            rcgen::date_time_ymd(2101, 1, 1),
            Some("is not valid before 2100-01-01 00:00:00 UTC"),
        ),
        (
            rcgen::date_time_ymd(2000, 1, 1),
            in_days(13),
            Some("expires at 2"),
        ),
        (rcgen::date_time_ymd(2000, 1, 1), in_days(15), None),
    ] {
        let pair = authority.issue_with(&["a.example"], |params| {
            (params.not_before, params.not_after) = (begin, end);
        });
        let (certificate, key) = pair.write(&files, "dated");
        let arguments = ["--tls-cert", &certificate, "--tls-key", &key];
        let server = Server::start(folder.path(), &arguments);
        let log = server.logs("certificates loaded");
        let line = format!(" WARN the certificate of a.example in {certificate} ");
        match warning {
            Some(warning) => assert!(server.logs(&line).contains(&(line + warning)), "{log}"),
            // It would be logged before the server prints its address.
            None => assert_eq!(server.warnings(), [""; 0]),
        }
    }
}

/// The clients of a test under load. Each makes a connection for every twenty requests.
const CLIENTS: usize = 16;

/// The number of reloads under load per driver, which is even; `ONRUSH_TEST_RELOADS` changes it.
fn reloads() -> usize {
    let reloads = std::env::var("ONRUSH_TEST_RELOADS").ok();
    let half = reloads.map_or(20, |reloads| {
        reloads.parse::<usize>().expect("a number") / 2
    });
    2 * half
}

/// Replaces a file as tools for certificates do.
fn replace(path: &str, content: &str) {
    let new = format!("{path}.new");
    std::fs::write(&new, content).expect("written");
    std::fs::rename(new, path).expect("renamed");
}

#[test]
fn reloads_under_load_cause_no_failed_request() {
    let reloads = reloads();
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let config = authority.client_config();
    let pairs: Vec<Pair> = (0..2).map(|_| authority.issue(&["localhost"])).collect();
    for driver in both_drivers() {
        let (certificate, key) = pairs[0].write(&files, "local");
        let arguments = [
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
            "--driver",
            driver,
            "--idle-timeout",
            "off",
        ];
        let server = Server::start(folder.path(), &arguments);
        // Each configuration has its own sessions. A resumed one shows the old certificate.
        let mut old = Client::connect(&server, &config).expect("a connection");
        // From now on it is idle, which has no limit here; a first request has one.
        old.get("/x").expect("a response");
        let (is_over, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let mut client = Client::connect(&server, &config).expect("a connection");
                        for _ in 0..20 {
                            let response = client.get("/x").expect("a response");
                            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
                            requests.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            // Files that fit together are in use before and after each reload; those that do not
            // are refused.
            for reload in 0..reloads {
                let pair = &pairs[(reload + 1) % 2];
                replace(&certificate, &pair.certificate);
                replace(&key, &pair.key);
                server.signal("HUP");
                let message = "INFO certificates loaded again";
                wait_for_count(&server, message, reload + 1);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let requests = requests.into_inner();
        assert!(requests > reloads, "{requests} requests");
        println!("{driver}: {reloads} reloads, {requests} requests, none failed");
        // The number is even, so that the first certificate is in use again.
        replace(&certificate, &pairs[1].certificate);
        replace(&key, &pairs[1].key);
        server.signal("HUP");
        wait_for_count(&server, "INFO certificates loaded again", reloads + 1);
        let new = Client::connect(&server, &authority.client_config()).expect("a connection");
        assert_ne!(old.certificate(), new.certificate(), "{driver}");
        let response = old.get("/x").expect("the connection is open");
        assert!(response.ends_with("content"), "{response}");
        let shown = server.log();
        assert!(shown.contains("certificates=\"localhost (expires 4096-01-01 00:00:00 UTC)\""));

        // Broken files have no effect, and the log says why.
        replace(&certificate, &pairs[0].certificate);
        server.signal("HUP");
        let log = server.logs("ERROR TLS: ");
        let line = log
            .lines()
            .find(|line| line.contains("ERROR"))
            .expect("a line");
        assert!(
            line.contains(&key) && line.contains("the certificate CN="),
            "{line}"
        );
        std::fs::remove_file(&key).expect("removed");
        server.signal("HUP");
        server.logs(&format!(
            "ERROR TLS: {key} does not exist; the certificates in use remain"
        ));
        let mut after = Client::connect(&server, &authority.client_config()).expect("a connection");
        assert_eq!(after.certificate(), new.certificate(), "{driver}");
        for client in [&mut old, &mut after] {
            assert!(client.get("/x").expect("a response").ends_with("content"));
        }
        // Valid files again.
        replace(&key, &pairs[0].key);
        server.signal("HUP");
        wait_for_count(&server, "INFO certificates loaded again", reloads + 2);
        let last = Client::connect(&server, &authority.client_config()).expect("a connection");
        assert_ne!(last.certificate(), new.certificate(), "{driver}");
    }
}

/// A client that may write must not become the one who says whom the server trusts.
#[test]
fn files_that_clients_can_replace_are_refused_at_start_and_later() {
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let (certificate, key) = authority.local(&files);
    let inside = text(folder.file("ca.pem", authority.pem()));
    let link = files.path().join("ca.pem");
    std::os::unix::fs::symlink(files.file("real.pem", authority.pem()), &link).expect("a link");
    let link = text(link);
    let pair = ["--tls-cert", &certificate, "--tls-key", &key];
    let refused = |path: &str| format!("--tls-client-ca: {path} is in the served folder");
    let with = |ca: &str| -> Vec<String> {
        let more = [
            "--allow",
            "put",
            "--tls-client-optional",
            "--tls-client-ca",
            ca,
        ];
        let all = pair.iter().chain(&more);
        all.map(|word| (*word).to_owned()).collect()
    };
    for command in [&[][..], &["check"]] {
        let mut program = onrush();
        program.args(command).arg(folder.path()).args(with(&inside));
        let output = output(&mut program);
        let log = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{log}");
        assert!(log.contains(&refused(&inside)), "{log}");
    }
    let arguments = with(&link);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let server = Server::start(folder.path(), &arguments);
    std::fs::remove_file(&link).expect("removed");
    std::os::unix::fs::symlink(&inside, &link).expect("a link");
    server.signal("HUP");
    let log = server.logs("the certificates in use remain");
    assert!(
        log.contains(&format!("ERROR TLS: {}", refused(&link))),
        "{log}"
    );
    assert!(!log.contains("certificates loaded again"), "{log}");
}

/// Waits until the log contains `text` so many times.
/// A client whose authority is removed must not go on with what it has verified before.
#[test]
fn a_removed_authority_ends_the_connections_of_its_clients() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let (servers, kept, gone) = (
        Authority::new("servers"),
        Authority::new("kept"),
        Authority::new("gone"),
    );
    let (certificate, key) = servers.local(&files);
    let (stays, goes) = (
        kept.issue(&["stays.example"]),
        gone.issue(&["goes.example"]),
    );
    for driver in both_drivers() {
        let both = kept.pem() + &gone.pem();
        let authorities = text(files.file("clients.pem", &both));
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        let more = [
            "--tls-client-ca",
            &authorities,
            "--allow=put",
            "--driver",
            driver,
        ];
        let arguments = [&tls[..], &more, &["--workers=2"]].concat();
        let server = Server::start(folder.path(), &arguments);
        let (stays, goes) = (
            servers.client_config_with(Some(&stays)),
            servers.client_config_with(Some(&goes)),
        );
        let connect = |config| -> std::io::Result<Client> {
            let mut client = Client::connect(&server, config)?;
            client.get("/x")?;
            Ok(client)
        };
        let mut those_who_stay: Vec<Client> =
            (0..4).map(|_| connect(&stays).expect("admitted")).collect();
        let mut idle: Vec<Client> = (0..10).map(|_| connect(&goes).expect("admitted")).collect();
        let mut writer = connect(&goes).expect("admitted");
        let head = "PUT /written HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nfour";
        writer.write_all(head.as_bytes()).expect("sent");
        // Another order of the same authorities changes nothing.
        replace(&authorities, &(gone.pem() + &kept.pem()));
        server.signal("HUP");
        wait_for_count(&server, "certificates loaded again", 1);
        idle[0].get("/x").expect("still admitted");
        replace(&authorities, &kept.pem());
        server.signal("HUP");
        wait_for_count(&server, "certificates loaded again", 2);
        for client in &mut idle {
            // They need not send anything: the end comes by itself.
            let read = testing::read_some(client, &mut [0; 100]);
            assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
            let is_late = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
            assert!(
                !read.as_ref().is_err_and(is_late),
                "the connection stays open"
            );
        }
        let sent = writer.write_all(b"more");
        let read = sent.and_then(|()| testing::read_some(&mut writer, &mut [0; 100]));
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        assert!(!folder.path().join("written").exists());
        for client in &mut those_who_stay {
            assert!(client.get("/x").expect("admitted").ends_with("content"));
        }
        // Neither a ticket nor a new handshake helps.
        for _ in 0..2 {
            assert!(connect(&goes).is_err());
        }
        connect(&stays).expect("admitted");
    }
}

fn wait_for_count(server: &Server, text: &str, count: usize) {
    wait_until(|| server.log().matches(text).count() >= count);
}

/// Copies a file of the engine's tests.
fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../onrush/tests/tls/");
    std::fs::read(format!("{folder}{name}")).expect("a file of the tests")
}

#[test]
fn an_ocsp_response_of_the_certificate_before_does_not_prevent_a_renewal() {
    let (folder, files) = (Folder::new(), Folder::new());
    let file = |name: &str, content: Vec<u8>| text(files.file(name, content));
    let certificate = file("site.pem", fixture("stapled.pem"));
    let key = file("site.key", fixture("p256-pkcs8.key"));
    let ocsp = file("site.ocsp", fixture("stapled-unlimited.ocsp"));
    let arguments = ["--tls-cert", &certificate, "--tls-key", &key];
    let server = Server::start(
        folder.path(),
        &[&arguments[..], &["--tls-ocsp", &ocsp]].concat(),
    );
    let renewed = Authority::new("authority").issue(&["renewed.example"]);
    replace(&certificate, &renewed.certificate);
    replace(&key, &renewed.key);
    server.signal("HUP");
    let log = server.logs("certificates loaded again");
    assert!(log.contains("renewed.example (expires"), "{log}");
    let warning = format!(" WARN TLS: {ocsp} is about another certificate");
    assert!(log.contains(&warning), "{log}");
    // A broken certificate is an error as before.
    replace(&certificate, "");
    server.signal("HUP");
    server.logs("site.pem is empty; the certificates in use remain");
}

/// A signal that ends the server does so while certificates are watched.
#[test]
fn the_server_ends_with_certificates() {
    let folder = Folder::new();
    for signals in [&["TERM"][..], &["HUP", "TERM"]] {
        let mut server = Server::start(folder.path(), &["--tls-self-signed"]);
        for signal in signals {
            server.signal(signal);
        }
        assert_eq!(server.wait_for_exit(crate::program::TIMEOUT), Some(0));
    }
}
