//! The access log of the real binary, in each format.

use crate::program::certificates::{Authority, Client};
use crate::program::{Folder, Server, drivers};
use std::io::{Read, Write};
use std::net::TcpStream;

/// The line with `mark`, with `TIME` as its time and `N` as its duration.
fn line(server: &Server, mark: &str) -> String {
    let log = server.logs(mark);
    let line = log
        .lines()
        .find(|line| line.contains(mark))
        .expect("a line");
    let (start, rest) = line.split_once('[').expect("a time");
    let (time, end) = rest.split_once(']').expect("a time");
    // 22/Nov/2026:20:14:15 +0000
    let form = |(at, byte): (usize, u8)| match at {
        2 | 6 => byte == b'/',
        3..=5 => byte.is_ascii_alphabetic(),
        11 | 14 | 17 => byte == b':',
        20 => byte == b' ',
        21 => byte == b'+',
        _ => byte.is_ascii_digit(),
    };
    assert!(
        time.len() == 26 && time.bytes().enumerate().all(form),
        "{line}"
    );
    format!("{start}[TIME]{end}")
}

#[test]
fn combined_format_equals_that_of_apache() {
    let folder = Folder::new();
    folder.file("object.txt", "hello");
    for driver in drivers() {
        let flags = ["--access-log-format", "combined", "--driver", driver];
        let server = Server::start(folder.path(), &flags);
        let ask = |method: &str, target: &str, fields: &str| {
            server.exchange(
                format!(
                    "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                     {fields}\r\n"
                )
                .as_bytes(),
            )
        };
        let fields = "User-Agent: a \"b\"\tc\\\r\nReferer: http://t/\u{e9}\r\n";
        assert!(ask("GET", "/object.txt?get", fields).starts_with("HTTP/1.1 200"));
        assert_eq!(
            line(&server, "?get"),
            "127.0.0.1 - - [TIME] \"GET /object.txt?get HTTP/1.1\" 200 5 \
             \"http://t/\\xc3\\xa9\" \"a \\\"b\\\"\\tc\\\\\""
        );
        let mut latin_1 = b"GET /object.txt?latin HTTP/1.1\r\nHost: localhost\r\n".to_vec();
        latin_1.extend_from_slice(b"Connection: close\r\nUser-Agent: caf\xe9\r\n\r\n");
        assert!(server.exchange(&latin_1).starts_with("HTTP/1.1 200"));
        assert_eq!(
            line(&server, "?latin"),
            "127.0.0.1 - - [TIME] \"GET /object.txt?latin HTTP/1.1\" 200 5 \"-\" \"caf\\xe9\"",
            "bytes that are not UTF-8"
        );
        server.exchange(b"GET /?rejected\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(line(&server, "?rejected").contains("\"GET /?rejected\\xe9 HTTP/1.1\" 400 "));
        ask("HEAD", "/object.txt?head", "");
        assert_eq!(
            line(&server, "?head"),
            "127.0.0.1 - - [TIME] \"HEAD /object.txt?head HTTP/1.1\" 200 - \"-\" \"-\""
        );
        let response = server.exchange(b"GET /?\x1b\"mark HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (_, body) = response.split_once("\r\n\r\n").expect("a head");
        assert!(response.starts_with("HTTP/1.1 400"), "{response}");
        assert_eq!(
            line(&server, "mark"),
            format!(
                "127.0.0.1 - - [TIME] \"GET /?\\x1b\\\"mark HTTP/1.1\" 400 {} \"-\" \"-\"",
                body.len()
            )
        );
        let log = server.log();
        assert!(
            log.contains(" INFO serving "),
            "the rest of the log keeps its format: {log}"
        );
    }
}

#[test]
fn body_over_the_limit_is_logged_like_other_requests() {
    let folder = Folder::new();
    for driver in drivers() {
        let server = Server::start(
            folder.path(),
            &[
                "--access-log-format=combined",
                "--allow=put",
                "--body-max=4B",
                "--driver",
                driver,
            ],
        );
        let response = server.exchange(
            b"PUT /x?long HTTP/1.1\r\nHost: localhost\r\nUser-Agent: agent\r\n\
              Accept: application/json\r\nContent-Length: 5\r\n\r\nhello",
        );
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 413 "), "{head}");
        let problem: serde_json::Value = serde_json::from_str(body).expect("a problem document");
        assert_eq!(problem["status"], 413);
        let bytes = body.len();
        assert_eq!(
            line(&server, "?long"),
            format!("127.0.0.1 - - [TIME] \"PUT /x?long HTTP/1.1\" 413 {bytes} \"-\" \"agent\"")
        );
    }
}

/// The access log has a switch of its own, so `--log-level` does not silence it.
#[test]
fn access_log_does_not_depend_on_the_level() {
    let folder = Folder::new();
    for level in ["error", "warn", "info"] {
        let flags = ["--access-log=on", "--log-level", level];
        let server = Server::start(folder.path(), &flags);
        server.get("/?asked");
        let log = server.logs("?asked");
        assert_eq!(log.contains(" serving "), level == "info", "{log}");
    }
}

#[test]
fn aborted_download_is_logged_with_the_bytes_sent() {
    const BYTES: u64 = 50_000_000;
    let folder = Folder::new();
    let path = folder.file("large", "");
    let file = std::fs::File::options()
        .write(true)
        .open(path)
        .expect("it is there");
    file.set_len(BYTES).expect("there is room");
    for driver in drivers() {
        let flags = ["--access-log=on", "--log-format=json", "--driver", driver];
        let server = Server::start(folder.path(), &flags);
        let mut stream = server.connect();
        let request = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("the server reads");
        let mut received = vec![0; 1_000_000];
        stream.read_exact(&mut received).expect("a part");
        assert!(
            !server.log().contains("/large"),
            "the download has not ended"
        );
        drop(stream); // With bytes unread: a reset (RFC 9293 §3.10.4).
        let log = server.logs("\"/large\"");
        let entry = log
            .lines()
            .find(|line| line.contains("/large"))
            .expect("a line");
        let entry: serde_json::Value = serde_json::from_str(entry).expect("an object");
        let fields = &entry["fields"];
        assert_eq!(fields["end"], "client_gone", "{fields}");
        assert_eq!(
            (&fields["status"], &fields["method"]),
            (&200.into(), &"GET".into())
        );
        let body_bytes = fields["body_bytes"].as_u64().expect("a number");
        assert!((900_000..BYTES).contains(&body_bytes), "{fields}");
        assert_eq!(fields["received_bytes"], request.len());
    }
}

#[test]
fn the_access_log_has_the_version() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let pair = authority.local(&files);
    let config = authority.client_config();
    for driver in drivers() {
        for (format, has_field) in [("json", true), ("text", true), ("combined", false)] {
            let more = [
                "--tls-cert",
                &pair.0,
                "--tls-key",
                &pair.1,
                "--driver",
                driver,
                "--access-log-format",
                format,
                "--bind-plain=127.0.0.2:0",
            ];
            let server = Server::start(folder.path(), &more);
            let mut client = Client::connect(&server, &config).expect("a connection");
            client.get("/x?encrypted").expect("a response");
            let out = server.prints("\nhttp://127.0.0.2:");
            let (_, address) = out.split_once("\nhttp://").expect("printed");
            let mut plain = TcpStream::connect(address.trim_end()).expect("the server accepts");
            let request = b"GET /x?plain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            plain.write_all(request).expect("the server reads");
            plain.read_to_end(&mut Vec::new()).expect("a response");
            let entry = |mark: &str| {
                let log = server.logs(mark);
                let line = log.lines().find(|line| line.contains(mark));
                line.expect("an entry").to_owned()
            };
            let (encrypted, plain) = (entry("?encrypted"), entry("?plain"));
            assert_eq!(encrypted.contains("TLSv1.3"), has_field, "{encrypted}");
            assert!(!plain.contains("tls") && !plain.contains("TLS"), "{plain}");
            if format == "json" {
                let entry: serde_json::Value = serde_json::from_str(&encrypted).expect("JSON");
                assert_eq!(entry["fields"]["tls"], "TLSv1.3", "{encrypted}");
            }
        }
    }
}
