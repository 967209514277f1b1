//! Failed logins to the real program, and many logins at once.

use crate::program::users::{UsersFile, basic, login, request};
use crate::program::{Folder, Server, drivers, wait_until};
use std::io::{Read, Write};

#[test]
fn failed_logins_are_delayed_limited_counted_and_logged() {
    const ATTEMPTS: usize = 40;
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in drivers() {
        let file = UsersFile::new();
        file.add("ann", &["all"]);
        let arguments = [
            "--auth-file",
            file.path(),
            "--driver",
            driver,
            "--admin=same",
        ];
        let server = Server::start(folder.path(), &arguments);
        assert_eq!(request(&server, "GET", "/x", &login("ann")).0, 200);
        let mut connections = Vec::new();
        for number in 0..ATTEMPTS {
            let mut stream = server.connect();
            let name = if number % 2 == 0 {
                "ann"
            } else {
                "\u{202e}stranger"
            };
            let fields = basic(name, &number.to_string());
            let head = format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
            stream.write_all(head.as_bytes()).expect("the server reads");
            connections.push(stream);
        }
        // Meanwhile, who is logged in is served.
        assert_eq!(request(&server, "GET", "/x", &login("ann")).0, 200);
        let mut delayed = 0;
        let mut refused = 0;
        for mut stream in connections {
            let mut response = vec![0; 1024];
            stream.set_nonblocking(true).expect("set");
            // Those that are delayed have no response yet. A machine that is slow enough has sent
            // some; it never sends all.
            std::thread::yield_now();
            match testing::read_some(&mut stream, &mut response) {
                Ok(bytes) => {
                    let response = String::from_utf8_lossy(&response[..bytes]).into_owned();
                    if response.starts_with("HTTP/1.1 429 ") {
                        assert!(response.contains("\r\nRetry-After: "), "{response}");
                        refused += 1;
                    } else {
                        assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
                    }
                }
                Err(_) => delayed += 1,
            }
        }
        let metrics = || request(&server, "GET", "/-/metrics", &login("ann")).1;
        let sample = |name: &str| {
            let text = metrics();
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim);
            line.and_then(|value| value.parse::<u64>().ok())
                .unwrap_or_default()
        };
        let refusals = "onrush_auth_refusals_total{status=\"429\"}";
        wait_until(|| sample(refusals) >= 20);
        assert!(refused + delayed > 0, "{refused} {delayed}");
        // The connections are closed, so nothing waits any more.
        wait_until(|| sample("onrush_auth_waiting") == 0);
        let failed = "onrush_auth_verifications_total{method=\"password\",outcome=\"failed\"}";
        assert!(
            (1..=ATTEMPTS as u64 - 20).contains(&sample(failed)),
            "{}",
            metrics()
        );
        let log = server.logs("login failed");
        assert!(log.matches("login failed").count() <= 20, "{log}");
        assert!(!log.contains('\u{202e}'), "{log}");
    }
}

#[test]
fn equal_passwords_are_verified_once() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in drivers() {
        let arguments = [
            "--auth=ann:ann-password",
            "--driver",
            driver,
            "--admin=same",
        ];
        let server = Server::start(folder.path(), &arguments);
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let get = || request(&server, "GET", "/x", &login("ann")).0;
            let threads: Vec<_> = (0..32).map(|_| scope.spawn(get)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert_eq!(statuses, [200; 32]);
        let metrics = request(&server, "GET", "/-/metrics", &login("ann")).1;
        let sample =
            "onrush_auth_verifications_total{method=\"password\",outcome=\"succeeded\"} 1\n";
        assert!(metrics.contains(sample), "{metrics}");
    }
}

/// The number of passwords that were verified, by outcome.
fn verified(server: &Server, outcome: &str, fields: &str) -> u64 {
    let metrics = request(server, "GET", "/-/metrics", fields).1;
    let sample =
        format!("onrush_auth_verifications_total{{method=\"password\",outcome=\"{outcome}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&sample));
    line.unwrap_or_else(|| panic!("{metrics}"))
        .parse()
        .expect("a number")
}

#[test]
fn each_spelling_of_a_password_is_the_same_one() {
    let folder = Folder::new();
    folder.file("x", "content");
    let server = Server::start(folder.path(), &["--auth=ann:ann-password", "--admin=same"]);
    let field = login("ann");
    let value = field
        .trim_end()
        .strip_prefix("Authorization: Basic ")
        .expect("Basic");
    for spaces in 1..20 {
        for scheme in ["Basic", "bAsIC"] {
            let field = format!("Authorization: {scheme}{}{value}\r\n", " ".repeat(spaces));
            assert_eq!(request(&server, "GET", "/x", &field).0, 200);
        }
    }
    let unpadded = format!("Authorization: Basic {}\r\n", value.trim_end_matches('='));
    assert_eq!(request(&server, "GET", "/x", &unpadded).0, 200);
    assert_eq!(verified(&server, "succeeded", &field), 1);
}

#[test]
fn many_valid_users_of_one_address_log_in_at_once() {
    const USERS: usize = 40;
    let folder = Folder::new();
    folder.file("x", "content");
    let file = UsersFile::new();
    file.add("ann", &["all"]);
    let ann = file.text();
    let others = (1..USERS).map(|number| ann.replace("users.ann", &format!("users.u{number}")));
    let text: String = std::iter::once(ann.clone()).chain(others).collect();
    file.write(&text);
    for driver in drivers() {
        let arguments = [
            "--auth-file",
            file.path(),
            "--driver",
            driver,
            "--admin=same",
        ];
        let server = Server::start(folder.path(), &arguments);
        let connections: Vec<_> = (1..USERS)
            .map(|number| {
                let fields = basic(&format!("u{number}"), "ann-password");
                let mut stream = server.connect();
                let head = format!(
                    "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"
                );
                stream.write_all(head.as_bytes()).expect("the server reads");
                stream
            })
            .collect();
        for (mut stream, number) in connections.into_iter().zip(1..) {
            let mut response = String::new();
            stream.read_to_string(&mut response).expect("a response");
            // A busy machine cannot begin all hashes in time. That is no failed login.
            if response.starts_with("HTTP/1.1 503 ") {
                let again = basic(&format!("u{number}"), "ann-password");
                let mut status = 503;
                wait_until(|| {
                    status = request(&server, "GET", "/x", &again).0;
                    status != 503
                });
                assert_eq!(status, 200);
                continue;
            }
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        }
        assert_eq!(verified(&server, "succeeded", &login("ann")), USERS as u64);
    }
}

#[test]
fn one_address_does_not_use_up_the_logins_that_may_wait() {
    const CONNECTIONS: usize = 100;
    let folder = Folder::new();
    folder.file("x", "content");
    let server = Server::start(folder.path(), &["--auth=ann:ann-password", "--admin=same"]);
    assert_eq!(request(&server, "GET", "/x", &login("ann")).0, 200);
    for number in 0..4 {
        let wrong = basic("ann", &format!("wrong{number}"));
        assert_eq!(request(&server, "GET", "/x", &wrong).0, 401);
    }
    // Equal credentials wait for one of them, which is delayed.
    let fields = basic("ann", "wrong");
    let head = format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).expect("the server reads");
            stream
        })
        .collect();
    let refused = || {
        let metrics = request(&server, "GET", "/-/metrics", &login("ann")).1;
        let sample = "onrush_auth_refusals_total{status=\"429\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(sample));
        line.and_then(|value| value.parse::<usize>().ok())
            .unwrap_or_default()
    };
    wait_until(|| refused() >= CONNECTIONS - 40);
    drop(connections);
}
