//! A small HTTP/1.1 for a loop over mio: takes complete requests and renders responses. It does not
//! depend on sockets.

use crate::{BYTES, ECHO_BYTES_MAX, HELLO, JSON, TEXT};
use httparse::{Header, Request};
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

/// The longest head; 431 beyond it.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// The most fields of a head; 431 beyond it.
const FIELD_COUNT_MAX: usize = 64;

/// Text that contains the date. It is rendered at most once per second.
#[derive(Debug)]
pub struct Dated {
    second: Duration,
    /// The `Date` line of every head.
    date: String,
    /// The complete response to `GET /` on a connection that stays open.
    hello: Vec<u8>,
}

impl Dated {
    /// The text of this second.
    pub fn new() -> Dated {
        let mut dated = Dated {
            second: Duration::MAX,
            date: String::new(),
            hello: Vec::new(),
        };
        dated.refresh();
        dated
    }

    /// Renders the text again if another second has begun.
    pub fn refresh(&mut self) {
        let now = SystemTime::now();
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH);
        let second = Duration::from_secs(since_1970.unwrap_or_default().as_secs());
        if second != self.second {
            self.second = second;
            self.date = format!("Date: {}\r\n", httpdate::fmt_http_date(now));
            let mut hello = Vec::new();
            self.render(
                &mut hello,
                "200 OK",
                TEXT.as_bytes(),
                HELLO.as_bytes(),
                false,
            );
            self.hello = hello;
        }
    }

    fn render(&self, out: &mut Vec<u8>, status: &str, kind: &[u8], body: &[u8], close: bool) {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.date.as_bytes());
        if close {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"Content-Type: ");
        out.extend_from_slice(kind);
        out.extend_from_slice(b"\r\nContent-Length: ");
        out.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(body);
    }
}

impl Default for Dated {
    fn default() -> Dated {
        Dated::new()
    }
}

/// The progress of [`respond_all`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of requests that have a response. The beginning of an incomplete request follows.
    pub consumed: usize,
    /// The least length of the incomplete request. With fewer bytes, another call is useless.
    pub needed: usize,
    /// The connection ends after these responses.
    pub close: bool,
}

/// Appends a response to `out` for each complete request at the beginning of `received`.
pub fn respond_all(received: &[u8], dated: &Dated, out: &mut Vec<u8>) -> Progress {
    let mut progress = Progress::default();
    while progress.consumed < received.len() && !progress.close {
        match respond_one(&received[progress.consumed..], dated, out) {
            Step::Done { bytes, close } => {
                progress.consumed += bytes;
                progress.close = close;
            }
            Step::Wait { needed } => {
                progress.needed = needed;
                break;
            }
            Step::Rejected(status) => {
                dated.render(out, status, TEXT.as_bytes(), b"", true);
                progress.consumed = received.len();
                progress.close = true;
            }
        }
    }
    progress
}

enum Step {
    Done { bytes: usize, close: bool },
    Wait { needed: usize },
    Rejected(&'static str),
}

fn respond_one(received: &[u8], dated: &Dated, out: &mut Vec<u8>) -> Step {
    let mut fields = [const { MaybeUninit::<Header<'_>>::uninit() }; FIELD_COUNT_MAX];
    let mut request = Request::new(&mut []);
    let head_bytes = match request.parse_with_uninit_headers(received, &mut fields) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) if received.len() < HEAD_BYTES_MAX => {
            return Step::Wait {
                needed: received.len() + 1,
            };
        }
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Step::Rejected("431 Request Header Fields Too Large");
        }
        Err(_) => return Step::Rejected("400 Bad Request"),
    };
    let meaning = match Meaning::of(&request) {
        Ok(meaning) => meaning,
        Err(status) => return Step::Rejected(status),
    };
    let bytes = head_bytes + meaning.body_bytes;
    let Some(body) = received.get(head_bytes..bytes) else {
        return Step::Wait { needed: bytes };
    };
    let close = meaning.close;
    match (request.method, request.path) {
        (Some("GET"), Some("/")) if !close => out.extend_from_slice(&dated.hello),
        (Some("GET"), Some("/")) => {
            dated.render(out, "200 OK", TEXT.as_bytes(), HELLO.as_bytes(), close);
        }
        (Some("GET"), Some("/json")) => {
            dated.render(out, "200 OK", JSON.as_bytes(), &crate::json(), close);
        }
        (Some("POST"), Some("/echo")) => dated.render(out, "200 OK", meaning.kind, body, close),
        _ => dated.render(out, "404 Not Found", TEXT.as_bytes(), b"", close),
    }
    Step::Done { bytes, close }
}

/// The values of the fields that matter.
struct Meaning<'a> {
    body_bytes: usize,
    kind: &'a [u8],
    close: bool,
}

impl<'a> Meaning<'a> {
    /// Fails with the status of the response.
    fn of(request: &Request<'_, 'a>) -> Result<Meaning<'a>, &'static str> {
        let mut length = None;
        let mut kind = BYTES.as_bytes();
        let mut close = request.version == Some(0);
        for Header { name, value } in request.headers.iter() {
            // The length alone excludes nearly all other fields.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => close = closes(value, close),
                12 if name.eq_ignore_ascii_case("content-type") => kind = value,
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let second = length.replace(number(value).ok_or("400 Bad Request")?);
                    if second.is_some() {
                        return Err("400 Bad Request");
                    }
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    return Err("501 Not Implemented");
                }
                _ => {}
            }
        }
        let body_bytes = length.unwrap_or(0);
        if body_bytes > ECHO_BYTES_MAX {
            return Err("413 Content Too Large");
        }
        Ok(Meaning {
            body_bytes,
            kind,
            close,
        })
    }
}

/// A number of digits only. `None` if it is too large.
fn number(value: &[u8]) -> Option<usize> {
    let digits = value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| digits)?;
    text.parse().ok()
}

/// Whether a `Connection` field with this value ends the connection.
fn closes(value: &[u8], default: bool) -> bool {
    let has = |option: &[u8]| {
        let mut options = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        options.any(|found| found.eq_ignore_ascii_case(option))
    };
    has(b"close") || (default && !has(b"keep-alive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n\
        POST /echo HTTP/1.1\r\nContent-Type: a/b\r\ncontent-length: 11\r\n\r\nGET / HTTP/\
        GET /json HTTP/1.1\r\n\r\n\
        POST /echo HTTP/1.1\r\nContent-Length: 0\r\n\r\n\
        GET /none HTTP/1.1\r\n\r\n\
        GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\n\
        GET / HTTP/1.1\r\n\r\n";

    fn responses_to(received: &[u8]) -> (Progress, String) {
        let mut out = Vec::new();
        let progress = respond_all(received, &Dated::new(), &mut out);
        (progress, String::from_utf8(out).unwrap())
    }

    /// All responses, without their dates, to bytes that arrive in pieces.
    fn in_pieces(pieces: &[&[u8]]) -> (String, bool) {
        let (mut inbox, mut needed, mut out) = (Vec::new(), 0, Vec::new());
        let dated = Dated::new();
        for piece in pieces {
            inbox.extend_from_slice(piece);
            if inbox.len() >= needed {
                let progress = respond_all(&inbox, &dated, &mut out);
                inbox.drain(..progress.consumed);
                needed = progress.needed;
                if progress.close {
                    return (undated(&out), true);
                }
            }
        }
        (undated(&out), false)
    }

    fn undated(out: &[u8]) -> String {
        let text = String::from_utf8(out.to_vec()).unwrap();
        let lines = text.split_inclusive('\n');
        lines.filter(|line| !line.starts_with("Date: ")).collect()
    }

    #[test]
    fn every_request_of_a_pipeline_has_a_response_up_to_the_last() {
        let (responses, closed) = in_pieces(&[SCRIPT.as_bytes()]);
        assert!(closed);
        assert_eq!(responses.matches("HTTP/1.1 ").count(), 6, "{responses}");
        assert_eq!(responses.matches("Hello, World!").count(), 3);
        assert!(responses.contains("a/b\r\nContent-Length: 11\r\n\r\nGET / HTTP/HTTP/1.1 200 OK"));
        assert!(responses.contains("Content-Type: application/octet-stream\r\nContent-Length: 0"));
        assert!(responses.contains(r#"{"message":"Hello, World!"}"#));
        assert!(responses.contains("HTTP/1.1 404 Not Found"));
        assert_eq!(responses.matches("Connection: close").count(), 1);
    }

    #[test]
    fn where_the_bytes_are_split_makes_no_difference() {
        let script = SCRIPT.as_bytes();
        let whole = in_pieces(&[script]);
        for at in 1..script.len() {
            let (first, second) = script.split_at(at);
            assert_eq!(in_pieces(&[first, second]), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = script.chunks(1).collect();
        assert_eq!(in_pieces(&bytes), whole);
    }

    #[test]
    fn an_incomplete_body_has_no_response() {
        let head = "POST /echo HTTP/1.1\r\nContent-Length: 70000\r\n\r\n";
        let (progress, out) = responses_to(head.as_bytes());
        assert_eq!((progress.consumed, out.as_str()), (0, ""));
        assert_eq!(progress.needed, head.len() + 70_000);
    }

    #[test]
    fn invalid_requests_end_the_connection() {
        let rejected = |lines: &str, status: &str| {
            let (progress, out) =
                responses_to(format!("POST /echo HTTP/1.1\r\n{lines}\r\n").as_bytes());
            assert!(progress.close && out.contains(status), "{lines}: {out}");
        };
        rejected("Content-Length: +1\r\n", "400 Bad Request");
        rejected("Content-Length: \r\n", "400 Bad Request");
        rejected(
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "400 Bad Request",
        );
        rejected(
            "Content-Length: 99999999999999999999\r\n",
            "400 Bad Request",
        );
        rejected("Content-Length: 1048577\r\n", "413 Content Too Large");
        rejected("Transfer-Encoding: chunked\r\n", "501 Not Implemented");
        rejected("nonsense\r\n", "400 Bad Request");
        rejected(&"a: b\r\n".repeat(FIELD_COUNT_MAX + 1), "431 ");
        let endless = format!("GET / HTTP/1.1\r\na: {}", "b".repeat(HEAD_BYTES_MAX));
        assert!(responses_to(endless.as_bytes()).1.contains("431 "));
    }

    #[test]
    fn http_1_0_ends_without_keep_alive() {
        assert!(responses_to(b"GET / HTTP/1.0\r\n\r\n").0.close);
        assert!(
            !responses_to(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
                .0
                .close
        );
    }
}
