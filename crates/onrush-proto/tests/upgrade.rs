//! Upgrades to another protocol (RFC 9110 §7.8, §15.2.2).

use onrush_proto::{
    connection::{After, Connection, Eof, SendAs, Step},
    head::Head,
    limits::Limits,
    reject::Reject,
    response::{ContentLength, FieldLines},
};

const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";
const ASKS: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";

fn received(request: &str) -> Connection {
    let (mut connection, mut head) = (Connection::new(), Head::default());
    let step = connection.receive_head(request.as_bytes(), &mut head, &Limits::default());
    assert!(matches!(step, Ok(Step::Request { .. })), "{step:?}");
    connection
}

fn respond(connection: &mut Connection, status: u16) -> (String, SendAs) {
    let (mut out, mut fields) = (Vec::new(), FieldLines::new());
    fields.append("Upgrade", b"x").unwrap();
    let length = ContentLength::Unknown;
    let send_as = connection.send_head(
        status,
        None,
        fields.as_bytes(),
        length,
        DATE,
        false,
        &mut out,
    );
    (String::from_utf8(out).unwrap(), send_as)
}

#[test]
fn after_a_101_all_bytes_belong_to_the_other_protocol() {
    let limits = Limits::default();
    let mut connection = received(ASKS);
    assert!(!connection.may_upgrade());
    assert!(connection.begin_upgrade() && connection.may_upgrade());
    // Nothing is read before the 101, whatever has arrived.
    let early = connection.receive_body(b"GET / HTTP/1.1\r\n\r\n", &limits);
    let early = early.unwrap();
    assert_eq!((early.consumed, early.data.len(), early.end), (0, 0, false));

    let (head, send_as) = respond(&mut connection, 101);
    assert_eq!(
        head,
        "HTTP/1.1 101 Switching Protocols\r\nServer: onrush\r\n\
         Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    );
    assert_eq!(send_as, SendAs::UntilClose);
    assert!(connection.is_upgraded() && !connection.may_upgrade());
    let bytes = b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n\0\xff";
    for split in 0..bytes.len() {
        let piece = connection.receive_body(&bytes[split..], &limits).unwrap();
        assert_eq!(piece.consumed, bytes.len() - split);
        assert_eq!(piece.data, 0..bytes.len() - split);
        assert!(!piece.end);
    }
    assert_eq!(
        (connection.body_run(), connection.body_remaining()),
        (0, None)
    );
    assert_eq!(connection.receive_eof(), Eof::ResponseDue);
    // No request follows, and no chunk.
    let mut out = Vec::new();
    connection.send_end(b"", &mut out);
    assert!(out.is_empty());
    assert_eq!(connection.finish_response(), After::LingeringClose);
    let mut head = Head::default();
    let step = connection.receive_head(ASKS.as_bytes(), &mut head, &limits);
    assert_eq!(step, Ok(Step::NeedMore));
}

#[test]
fn any_other_response_continues_with_http() {
    for status in [200, 204, 304, 426, 500] {
        let mut connection = received(ASKS);
        assert!(connection.begin_upgrade());
        let (head, send_as) = respond(&mut connection, status);
        assert!(!connection.is_upgraded() && connection.body_ended());
        assert!(!head.contains("Connection"), "{head}");
        assert_ne!(send_as, SendAs::UntilClose);
        connection.send_end(b"", &mut Vec::new());
        assert_eq!(connection.finish_response(), After::KeepAlive);
        let mut head = Head::default();
        let step = connection.receive_head(ASKS.as_bytes(), &mut head, &Limits::default());
        assert!(matches!(step, Ok(Step::Request { .. })));
    }
}

#[test]
fn a_refusal_is_not_an_upgrade() {
    let mut connection = received(ASKS);
    assert!(connection.begin_upgrade());
    connection.send_reject(Reject::new(503, "busy"), DATE, &mut Vec::new());
    assert!(!connection.is_upgraded() && !connection.may_upgrade());
    assert_eq!(connection.finish_response(), After::LingeringClose);
}

#[test]
fn requests_that_cannot_be_upgraded() {
    let with_body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for request in [with_body, chunked, "GET / HTTP/1.0\r\nUpgrade: x\r\n\r\n"] {
        let mut connection = received(request);
        assert!(!connection.begin_upgrade() && !connection.may_upgrade());
    }
    assert!(!Connection::new().begin_upgrade());
    let mut connection = received(ASKS);
    respond(&mut connection, 200);
    assert!(!connection.begin_upgrade(), "the response has begun");
}
