//! RFC 9110 §13: conditional requests; §8.8.3: entity tags.

use onrush_proto::{
    etag::{EntityTag, Malformed, Tags, tags},
    precondition::{
        Current,
        Outcome::{self, Failed, NotModified, Proceed},
        evaluate,
    },
};

const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sunday, 06-Nov-94 08:49:38 GMT";
const THEN_S: u64 = 784_111_777;

const READ: bool = true;
const WRITE: bool = false;

fn current(tag: &'static str) -> Current<'static> {
    Current {
        exists: true,
        etag: EntityTag::parse(tag.as_bytes()),
        modified_s: Some(THEN_S),
    }
}

/// `fields` are lines of `name: value`.
fn outcome(reads: bool, current: &Current<'_>, fields: &str) -> Outcome {
    let fields = fields.lines().map(|line| {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        (name, value.as_bytes())
    });
    evaluate(reads, current, fields)
}

fn check(current: Current<'_>, rows: &[(bool, &str, Outcome)]) {
    for (reads, fields, expected) in rows {
        assert_eq!(
            outcome(*reads, &current, fields),
            *expected,
            "{fields} {current:?} {reads}"
        );
    }
}

#[test]
fn no_preconditions() {
    let fields = "Host: a\nIf-Range: \"x\"\nIf-Modified: y\nIf-Matchx: \"z\"";
    check(
        current("\"x\""),
        &[(READ, fields, Proceed), (WRITE, fields, Proceed)],
    );
    check(
        Current::default(),
        &[(READ, "", Proceed), (WRITE, "", Proceed)],
    );
}

#[test]
fn if_match() {
    check(
        current("\"x\""),
        &[
            (READ, "If-Match: \"x\"", Proceed),
            (WRITE, "if-match: \"a\", \"x\"", Proceed),
            (WRITE, "If-Match: \"a\"\nIf-Match: \"x\"", Proceed),
            (WRITE, "If-Match: *", Proceed),
            (WRITE, "If-Match: \"y\"", Failed),
            (READ, "If-Match: \"y\"", Failed),
            (WRITE, "If-Match: W/\"x\"", Failed),
            (WRITE, "If-Match: \"X\"", Failed),
            (WRITE, "If-Match: x", Failed),
            (WRITE, "If-Match: ", Failed),
        ],
    );
    check(current("W/\"x\""), &[(WRITE, "If-Match: W/\"x\"", Failed)]);
    check(
        Current {
            etag: None,
            ..current("")
        },
        &[
            (WRITE, "If-Match: \"x\"", Failed),
            (WRITE, "If-Match: *", Proceed),
        ],
    );
    check(
        Current {
            exists: false,
            ..current("\"x\"")
        },
        &[
            (WRITE, "If-Match: *", Failed),
            (WRITE, "If-Match: \"x\"", Failed),
        ],
    );
}

#[test]
fn if_none_match() {
    check(
        current("\"x\""),
        &[
            (READ, "If-None-Match: \"x\"", NotModified),
            (READ, "If-None-Match: W/\"x\"", NotModified),
            (READ, "If-None-Match: \"a\", \"x\"", NotModified),
            (
                READ,
                "If-None-Match: \"a\"\nIf-None-Match: \"x\"",
                NotModified,
            ),
            (READ, "If-None-Match: *", NotModified),
            (READ, "If-None-Match: \"y\"", Proceed),
            (READ, "If-None-Match: x", Proceed),
            (WRITE, "If-None-Match: \"x\"", Failed),
            (WRITE, "If-None-Match: *", Failed),
            (WRITE, "If-None-Match: \"y\"", Proceed),
            // A malformed list still stops a write.
            (WRITE, "If-None-Match: x", Failed),
            (WRITE, "If-None-Match: ", Failed),
            (WRITE, "If-None-Match: \"y\", *", Failed),
        ],
    );
    check(
        Current::default(),
        &[
            (WRITE, "If-None-Match: *", Proceed),
            (READ, "If-None-Match: *", Proceed),
            (WRITE, "If-None-Match: \"x\"", Proceed),
        ],
    );
}

#[test]
fn if_modified_since() {
    check(
        current("\"x\""),
        &[
            (READ, &format!("If-Modified-Since: {THEN}"), NotModified),
            (READ, &format!("If-Modified-Since: {AFTER}"), NotModified),
            (READ, &format!("If-Modified-Since: {BEFORE}"), Proceed),
            (READ, "If-Modified-Since: yesterday", Proceed),
            (
                READ,
                &format!("If-Modified-Since: {THEN}\nIf-Modified-Since: {THEN}"),
                Proceed,
            ),
            (WRITE, &format!("If-Modified-Since: {THEN}"), Proceed),
            // If-None-Match overrides it.
            (
                READ,
                &format!("If-Modified-Since: {THEN}\nIf-None-Match: \"y\""),
                Proceed,
            ),
            (
                READ,
                &format!("If-None-Match: \"x\"\nIf-Modified-Since: {BEFORE}"),
                NotModified,
            ),
        ],
    );
    let ask = format!("If-Modified-Since: {THEN}");
    check(
        Current {
            modified_s: None,
            ..current("\"x\"")
        },
        &[(READ, &ask, Proceed)],
    );
    check(
        Current {
            exists: false,
            ..current("\"x\"")
        },
        &[(READ, &ask, Proceed)],
    );
}

#[test]
fn if_unmodified_since() {
    check(
        current("\"x\""),
        &[
            (WRITE, &format!("If-Unmodified-Since: {THEN}"), Proceed),
            (WRITE, &format!("If-Unmodified-Since: {AFTER}"), Proceed),
            (WRITE, &format!("If-Unmodified-Since: {BEFORE}"), Failed),
            (READ, &format!("If-Unmodified-Since: {BEFORE}"), Failed),
            (WRITE, "If-Unmodified-Since: yesterday", Proceed),
            // If-Match overrides it.
            (
                WRITE,
                &format!("If-Unmodified-Since: {BEFORE}\nIf-Match: \"x\""),
                Proceed,
            ),
            (
                WRITE,
                &format!("If-Unmodified-Since: {AFTER}\nIf-Match: \"y\""),
                Failed,
            ),
        ],
    );
    let ask = format!("If-Unmodified-Since: {BEFORE}");
    check(
        Current {
            modified_s: None,
            ..current("\"x\"")
        },
        &[(WRITE, &ask, Proceed)],
    );
}

/// RFC 9110 §13.2.2: the first condition that fails decides.
#[test]
fn order() {
    check(
        current("\"x\""),
        &[
            (READ, "If-None-Match: \"x\"\nIf-Match: \"y\"", Failed),
            (READ, "If-None-Match: \"x\"\nIf-Match: \"x\"", NotModified),
            (WRITE, "If-None-Match: \"y\"\nIf-Match: \"x\"", Proceed),
            (
                READ,
                &format!("If-Modified-Since: {THEN}\nIf-Unmodified-Since: {BEFORE}"),
                Failed,
            ),
            (
                READ,
                &format!("If-Modified-Since: {THEN}\nIf-Unmodified-Since: {THEN}"),
                NotModified,
            ),
            (
                READ,
                &format!("If-Modified-Since: {THEN}\nIf-Match: \"x\""),
                NotModified,
            ),
        ],
    );
}

#[test]
fn tags_that_are_read() {
    let tag = |weak, opaque| Some(EntityTag { weak, opaque });
    let rows: [(&[u8], Option<EntityTag<'_>>); 15] = [
        (b"\"x\"", tag(false, b"x")),
        (b"\"\"", tag(false, b"")),
        (b"W/\"x\"", tag(true, b"x")),
        (b"\"!#,~\\\xff\"", tag(false, b"!#,~\\\xff")),
        (b"w/\"x\"", None),
        (b"W/x", None),
        (b"x", None),
        (b"'x'", None),
        (b"\"x", None),
        (b"x\"", None),
        (b"\"x\"y", None),
        (b"\"x y\"", None),
        (b"\"\x7f\"", None),
        (b"\"x\" ", None),
        (b"", None),
    ];
    for (value, expected) in rows {
        assert_eq!(
            EntityTag::parse(value),
            expected,
            "{}",
            value.escape_ascii()
        );
    }
    assert_eq!(EntityTag::strong(b"a\"b"), None);
    assert_eq!(EntityTag::weak(b"a b"), None);
}

/// The table of comparisons in RFC 9110 §8.8.3.2.
#[test]
fn comparisons() {
    let rows = [
        ("W/\"1\"", "W/\"1\"", false, true),
        ("W/\"1\"", "W/\"2\"", false, false),
        ("W/\"1\"", "\"1\"", false, true),
        ("\"1\"", "W/\"1\"", false, true),
        ("\"1\"", "\"1\"", true, true),
    ];
    for (one, other, strongly, weakly) in rows {
        let (one, other) = (
            EntityTag::parse(one.as_bytes()),
            EntityTag::parse(other.as_bytes()),
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one.matches_strongly(&other), strongly);
        assert_eq!(one.matches_weakly(&other), weakly);
    }
}

#[test]
fn lists_of_tags() {
    let read = |value: &'static str| match tags(value.as_bytes()) {
        Tags::Any => vec![Ok("*")],
        Tags::List(list) => list
            .map(|tag| tag.map(|tag| str::from_utf8(tag.opaque).unwrap()))
            .collect(),
    };
    assert_eq!(read(" * "), [Ok("*")]);
    assert_eq!(read("\"a\""), [Ok("a")]);
    assert_eq!(read(" ,\"a\" ,\t W/\"b,c\",, "), [Ok("a"), Ok("b,c")]);
    assert_eq!(read("\"a\" \"b\""), [Err(Malformed)]);
    assert_eq!(read("\"a\", b, \"c\""), [Ok("a"), Err(Malformed)]);
    assert_eq!(read("\"a\", *"), [Ok("a"), Err(Malformed)]);
    assert_eq!(read(""), []);
}

#[test]
fn tags_are_written_as_they_are_read() {
    for text in ["\"x\"", "W/\"x,y\""] {
        let mut out = Vec::new();
        EntityTag::parse(text.as_bytes()).unwrap().write(&mut out);
        assert_eq!(out, text.as_bytes());
    }
}
