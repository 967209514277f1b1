//! Bodies that end elsewhere than their `Content-Length` says, without an error. The engine must
//! not let that happen; if it does, nothing is stored that looks complete.

use crate::common::*;
use onrush::sim::Simulation;
use onrush::{Handler, Limits, Request, RequestBody};
use onrush_files::Files;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Passes requests on to `files`, perhaps with the body that the engine would give by mistake:
/// `X-Taken: N` leaves out its first N bytes, and `X-Body: other` exchanges it for the one of a
/// request that has sent `X-Body: kept`, and waits.
fn mistaken(files: &Files) -> impl Handler + Clone + Send + Sync + use<> {
    thread_local! {
        static KEPT: Rc<Cell<Option<RequestBody>>> = Rc::default();
    }
    let files = files.clone();
    move |mut request: Request| {
        let files = files.clone();
        async move {
            let taken = request.header("x-taken").map_or(0, |bytes| {
                let digits = std::str::from_utf8(bytes).expect("digits");
                digits.parse().expect("a number")
            });
            if taken > 0 {
                let mut bytes = Vec::with_capacity(taken);
                let filled = request.body().fill_whole(&mut bytes).await;
                assert_eq!(filled.ok(), Some(taken));
            }
            match request.header("x-body") {
                Some(b"kept") => {
                    let body = std::mem::take(request.body());
                    KEPT.with(|kept| kept.set(Some(body)));
                    request.worker().sleep(Duration::from_secs(5)).await;
                }
                Some(_) => {
                    let other = KEPT.with(|kept| kept.take());
                    *request.body() = other.expect("a body that is kept");
                }
                None => {}
            }
            files.handle(request).await
        }
    }
}

/// A server in a simulator whose bodies may end elsewhere.
struct Mistaken {
    server: TestServer,
    sim: Simulation,
}

impl Mistaken {
    fn new() -> Mistaken {
        let server = TestServer::simulated("/", &writable(), 1);
        let sim = Simulation::new(1, &mistaken(&server.files), Limits::default());
        Mistaken { server, sim }
    }

    /// The response to a request with this head, of lines separated by `\n`.
    fn ask(&mut self, head: &str, body: &[u8]) -> Reply {
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let fields: String = fields.lines().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let mut request = format!(
            "{line} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n{fields}\
             Connection: close\r\n\r\n"
        );
        request.push_str(std::str::from_utf8(body).expect("text"));
        Reply::parse(&ask_simulated(&mut self.sim, &request), false)
    }

    fn refuses(&mut self, head: &str, body: &[u8]) {
        let reply = self.ask(head, body);
        let expected = (400, "the body is incomplete\n");
        assert_eq!((reply.status, reply.text()), expected, "{head}");
    }
}

/// Lengths that are received into a buffer of its own, into shared ones, and into several.
const LENGTHS: [usize; 4] = [10, 100_000, 300_000, 3_000_000];

fn text(bytes: usize) -> Vec<u8> {
    b"0123456789".iter().copied().cycle().take(bytes).collect()
}

#[test]
fn a_put_whose_body_is_too_short_stores_nothing() {
    let mut mistaken = Mistaken::new();
    mistaken.server.add("old", b"old");
    for bytes in LENGTHS {
        for taken in [1, bytes / 2, bytes] {
            for path in ["/old", "/new"] {
                mistaken.refuses(&format!("PUT {path}\nX-Taken: {taken}"), &text(bytes));
            }
        }
        let stored = mistaken.ask(&format!("PUT /whole-{bytes}"), &text(bytes));
        assert_eq!(stored.status, 201);
        let content = mistaken.server.content(&format!("whole-{bytes}"));
        assert!(content == Some(text(bytes)), "{bytes}");
    }
    assert_eq!(mistaken.server.content("old").as_deref(), Some(&b"old"[..]));
    assert_eq!(mistaken.server.content("new"), None);
    assert_eq!(mistaken.server.staged(), 0);
}

#[test]
fn a_put_whose_body_is_too_long_stores_nothing() {
    for sent in [11, 20_000] {
        let mut mistaken = Mistaken::new();
        let mut longer = Connection::simulated(mistaken.sim.connect());
        let head = format!(
            "PUT /other HTTP/1.1\r\nHost: test\r\nContent-Length: {sent}\r\nX-Body: kept\r\n\r\n"
        );
        let request = [head.as_bytes(), &text(sent)].concat();
        longer.send(Some(&mut mistaken.sim), &request);
        let reply = mistaken.ask("PUT /new\nX-Body: other", &text(10));
        let expected = (400, "the body is longer than it has announced\n");
        assert_eq!((reply.status, reply.text()), expected, "{sent}");
        assert_eq!(mistaken.server.content("new"), None);
        assert_eq!(mistaken.server.staged(), 0);
    }
}

/// Of an upload that can be continued, what has arrived is kept, as after a lost connection.
#[test]
fn an_upload_that_continues_is_not_complete_after_a_body_that_is_too_short() {
    let mut mistaken = Mistaken::new();
    let draft = "PUT /draft\nUpload-Complete: ?1\nX-Taken: 4";
    mistaken.refuses(draft, &text(10));
    assert_eq!(mistaken.server.content("draft"), None);

    let tus = "Tus-Resumable: 1.0.0";
    let created = mistaken.ask(&format!("POST /tus\n{tus}\nUpload-Length: 10"), b"");
    assert_eq!(created.status, 201, "{}", created.text());
    let url = crate::common::tus::target_of(created.field("location").expect("a URL"));
    let patch = format!(
        "PATCH {url}\n{tus}\nUpload-Offset: 0\n{}",
        crate::common::tus::STREAM
    );
    mistaken.refuses(&format!("{patch}\nX-Taken: 3"), &text(10));
    let offset = mistaken.ask(&format!("HEAD {url}\n{tus}"), b"");
    assert_eq!(offset.field("upload-offset"), Some("7"));
    assert_eq!(mistaken.server.content("tus"), None);
}

#[test]
fn a_part_of_an_upload_is_missing_after_a_body_that_is_too_short() {
    let mut mistaken = Mistaken::new();
    let begin = "PUT /x\nUpload-Complete: ?0\nUpload-Length: 20\nOnrush-Part-Size: 10";
    let begun = mistaken.ask(begin, b"");
    assert_eq!(begun.status, 201, "{}", begun.text());
    let none = begun.field("onrush-parts").expect("the parts").to_owned();
    let url = begun.field("location").expect("a URL").to_owned();
    let part = format!(
        "PATCH {url}\nContent-Type: application/partial-upload\nUpload-Complete: ?0\n\
         Upload-Offset: 10"
    );
    mistaken.refuses(&format!("{part}\nX-Taken: 3"), &text(10));
    let state = mistaken.ask(&format!("HEAD {url}"), b"");
    assert_eq!(state.field("onrush-parts"), Some(&none[..]));
    let arrived = mistaken.ask(&part, &text(10));
    assert_eq!(arrived.status, 204, "{}", arrived.text());
}

/// A form says itself where it ends.
#[test]
fn a_form_whose_body_is_too_short_is_refused() {
    let form = "--b\r\nContent-Disposition: form-data; name=f; filename=new\r\n\r\nx\r\n--b--\r\n";
    let mut mistaken = Mistaken::new();
    let reply = mistaken.ask(
        "POST /\nContent-Type: multipart/form-data; boundary=b\nX-Taken: 3",
        form.as_bytes(),
    );
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(mistaken.server.content("new"), None);
}
