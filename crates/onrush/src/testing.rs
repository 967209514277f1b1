//! Tests of a handler, router or other application by single requests, without a socket:
//! [`get`], and [`Ask`] for other requests.
//!
//! ```
//! use onrush::{Request, Router, testing};
//!
//! async fn greet(request: Request) -> String {
//!     format!("Hello, {}!", request.param("name").unwrap_or("World"))
//! }
//!
//! let router = Router::new().get("/{name}", greet);
//! assert_eq!(testing::get(&router, "/Ada").text(), "Hello, Ada!");
//! assert_eq!(testing::get(&router, "/").status, 404);
//! ```
//!
//! The application runs on a [`Simulation`] with the default limits. Time passes while it waits, so
//! a handler that sleeps answers at once. Each request has a simulation of its own, so states of a
//! worker begin anew, and states that workers share remain. A test about splits, time limits or
//! several connections uses the simulation itself.

use crate::handler::Application;
use crate::limits::Limits;
use crate::sim::Simulation;
use onrush_rt::driver::sim::Behaviour;
use std::fmt;
use std::time::Duration;

/// What the simulated network holds, in bytes.
const PIPE_BYTES: usize = 1 << 20;

/// Sends a GET request. See [`Ask::send`].
#[track_caller]
pub fn get(application: &impl Application, target: &str) -> Answer {
    Ask::new("GET", target).send(application)
}

/// A request of a test.
///
/// # Examples
/// ```
/// use onrush::content::ContentError;
/// use onrush::{Request, testing::Ask};
///
/// async fn name(mut request: Request) -> Result<String, ContentError> {
///     Ok(request.form(100).await?.get("name").unwrap_or_default().into_owned())
/// }
///
/// let ask = Ask::new("POST", "/").header("Content-Type", "application/x-www-form-urlencoded");
/// let answer = ask.body("name=Ada+L").send(&name);
/// assert_eq!((answer.status, answer.text()), (200, "Ada L"));
/// assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
/// ```
#[derive(Clone, Debug)]
pub struct Ask {
    head: String,
    body: Vec<u8>,
}

impl Ask {
    /// A request without a body, to the host `example.com`.
    pub fn new(method: &str, target: &str) -> Ask {
        Ask {
            head: format!("{method} {target} HTTP/1.1\r\nHost: example.com\r\n"),
            body: Vec::new(),
        }
    }

    /// Adds a field line as it is.
    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Sets the body, which is sent with `Content-Length`.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Ask {
        self.body = body.into();
        self
    }

    /// Sends the request to `application` and returns its final response.
    ///
    /// # Panics
    /// If the response is not whole: the application has reset the connection, or it sends for
    /// longer than `Limits::total_timeout`, an hour.
    #[track_caller]
    pub fn send(mut self, application: &impl Application) -> Answer {
        if !self.body.is_empty() {
            let length = self.body.len().to_string();
            self = self.header("Content-Length", &length);
        }
        let network = Behaviour {
            pipe_bytes: PIPE_BYTES,
            split: false,
            delay: false,
        };
        let mut sim = Simulation::builder(1).network(network).start(application);
        let client = sim.connect();
        let is_head = self.head.starts_with("HEAD ");
        let request = [self.head.as_bytes(), b"\r\n", &self.body].concat();
        let (mut received, mut rest) = (Vec::new(), &request[..]);
        let limit = Limits::default().total_timeout + Duration::from_secs(1);
        let mut passed = Duration::ZERO;
        while passed <= limit {
            // What is not accepted follows an early response, which says all.
            rest = &rest[client.send(rest).unwrap_or(rest.len())..];
            sim.run();
            let piece = client.receive().unwrap_or_default();
            received.extend_from_slice(&piece);
            if let Some(answer) = Answer::read(&received, is_head) {
                return answer;
            }
            if piece.is_empty() && client.at_end() {
                break;
            }
            if piece.is_empty() {
                let step = Duration::from_millis(100).max(passed / 10);
                sim.advance(step);
                passed += step;
            }
        }
        panic!("the response is not whole: {}", received.escape_ascii());
    }
}

/// The response to a request of a test.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The field lines as (name, value), in order. Bytes that are not UTF-8 are U+FFFD.
    pub headers: Vec<(String, String)>,
    /// The content, without its framing.
    pub body: Vec<u8>,
}

/// With the content as text.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .field("body", &String::from_utf8_lossy(&self.body))
            .finish()
    }
}

impl Answer {
    /// The first value of the field `name`, which is case-insensitive.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter();
        let line = lines.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(&line.1)
    }

    /// The content as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the content is UTF-8")
    }

    /// The final response at the beginning of `received`, if it is whole.
    fn read(mut received: &[u8], is_head: bool) -> Option<Answer> {
        loop {
            let (head, rest) = split(received, b"\r\n\r\n")?;
            let head = String::from_utf8_lossy(head);
            let mut lines = head.split("\r\n");
            let status = lines.next()?.get(9..12)?.parse().ok()?;
            let fields = lines.filter_map(|line| line.split_once(": "));
            let mut answer = Answer {
                status,
                headers: fields.map(|(a, b)| (a.to_owned(), b.to_owned())).collect(),
                body: Vec::new(),
            };
            if (100..200).contains(&status) && status != 101 {
                received = rest;
                continue;
            }
            if !is_head && !matches!(status, 101 | 204 | 304) {
                answer.body = answer.content(rest)?;
            }
            return Some(answer);
        }
    }

    /// The content at the beginning of `rest`, if it is whole (RFC 9112 §6.3).
    fn content(&self, mut rest: &[u8]) -> Option<Vec<u8>> {
        if let Some(length) = self.header("Content-Length") {
            return Some(rest.get(..length.parse().ok()?)?.to_vec());
        }
        let mut content = Vec::new();
        loop {
            let (length, chunk) = split(rest, b"\r\n")?;
            let length = usize::from_str_radix(std::str::from_utf8(length).ok()?, 16).ok()?;
            if length == 0 {
                // Trailers may be between the last chunk and the empty line.
                let is_whole = chunk == b"\r\n" || chunk.ends_with(b"\r\n\r\n");
                return is_whole.then_some(content);
            }
            content.extend_from_slice(chunk.get(..length)?);
            rest = chunk.get(length + 2..)?;
        }
    }
}

/// What is before and behind the first `separator`.
fn split<'a>(bytes: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut windows = bytes.windows(separator.len());
    let at = windows.position(|window| window == separator)?;
    Some((&bytes[..at], &bytes[at + separator.len()..]))
}
