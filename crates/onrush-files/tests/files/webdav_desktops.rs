//! What the file managers of macOS and Windows send, request by request and over one connection, on
//! both drivers and in the simulator (`webdav_requests/*.txt`).
//!
//! A request follows a line with its status and, perhaps, a text that the response contains. In a
//! request, `{token}` is the token of the last lock, `{length}` the length of the content, and
//! `{chunked}` the beginning of content that is sent as two chunks.

use crate::common::webdav::webdav;
use crate::common::{TestServer, on_all_backends};

/// A request, and what is expected.
struct Exchange {
    status: u16,
    contains: String,
    head: String,
    content: String,
}

fn exchanges(text: &str) -> Vec<Exchange> {
    let blocks = text.split("\n=== ").skip(1);
    let exchange = |block: &str| {
        let (expected, request) = block.split_once('\n').expect("a request");
        let (status, contains) = expected.split_once(' ').unwrap_or((expected, ""));
        let (head, content) = request.split_once("\n\n").unwrap_or((request, ""));
        Exchange {
            status: status.parse().expect("a status"),
            contains: contains.to_owned(),
            head: head.trim_end().to_owned(),
            content: content.to_owned(),
        }
    };
    blocks.map(exchange).collect()
}

impl Exchange {
    /// The bytes of the request.
    fn bytes(&self, token: &str) -> Vec<u8> {
        let content = match self.content.strip_prefix("{chunked}") {
            Some(content) => {
                let (first, rest) = content.split_at(3);
                let chunk = |part: &str| format!("{:X}\r\n{part}\r\n", part.len());
                format!("{}{}0\r\n\r\n", chunk(first), chunk(rest))
            }
            None => self.content.clone(),
        };
        let head = self.head.replace("{token}", token);
        let head = head.replace("{length}", &content.len().to_string());
        format!("{}\r\n\r\n{content}", head.replace('\n', "\r\n")).into_bytes()
    }
}

/// Whether a response has arrived with all its content.
fn is_complete(bytes: &[u8], is_head: bool) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let Some((head, content)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    match length.map(|length| length.parse().expect("a number")) {
        _ if is_head || head.starts_with("http/1.1 204 ") => true,
        Some(length) => content.len() >= length,
        None => content.ends_with("0\r\n\r\n"),
    }
}

/// Sends the requests, each after the response to the one before.
fn run(server: &mut TestServer, text: &str) {
    let all = exchanges(text);
    assert!(all.len() > 15, "{} requests", all.len());
    let mut connection = server.connect();
    let mut token = String::new();
    for exchange in all {
        server.send(&mut connection, &exchange.bytes(&token));
        let is_head = exchange.head.starts_with("HEAD ");
        let response = server.receive_until(&mut connection, |bytes| is_complete(bytes, is_head));
        let response = String::from_utf8(response).expect("text");
        let line = exchange.head.lines().next().unwrap_or_default();
        let found = format!("HTTP/1.1 {} ", exchange.status);
        assert!(response.starts_with(&found), "{line}: {response}");
        // The names of fields have no case.
        let contains = |part: &str| (response.to_lowercase()).contains(&part.to_lowercase());
        assert!(contains(&exchange.contains), "{line}: {response}");
        let given = response
            .lines()
            .find_map(|line| line.strip_prefix("Lock-Token: <"));
        if let Some((given, _)) = given.and_then(|line| line.split_once('>')) {
            given.clone_into(&mut token);
        }
    }
}

#[test]
fn the_finder_of_macos_saves_a_file() {
    on_all_backends(&webdav(), |server| {
        run(server, include_str!("webdav_requests/finder.txt"));
        assert_eq!(
            server.content("final version.txt").as_deref(),
            Some(&b"the text"[..])
        );
    });
}

#[test]
fn the_explorer_of_windows_copies_a_file() {
    on_all_backends(&webdav(), |server| {
        run(server, include_str!("webdav_requests/explorer.txt"));
    });
}
