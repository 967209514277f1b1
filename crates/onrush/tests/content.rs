//! What handlers read from requests as values: queries, forms, JSON, cookies. And redirects.

use crate::common::calm;
use onrush::content::ContentError;
use onrush::{FieldError, IntoResponse, Json, Limits, Request, Response, Router};
use serde::{Deserialize, Serialize};
use std::error::Error;

/// The response of `router` to a request with this head, whose `Content-Length` is added, and body.
fn ask(router: &Router, head: &str, body: impl AsRef<[u8]>) -> String {
    let body = body.as_ref();
    let mut sim = calm(router, Limits::default());
    let client = sim.connect();
    let head = format!(
        "{head}\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    sim.send(&client, &[head.as_bytes(), body].concat());
    String::from_utf8(client.receive().unwrap()).unwrap()
}

#[derive(Debug, Deserialize, Serialize)]
struct Point {
    x: i8,
    #[serde(default)]
    name: String,
}

fn json() -> Router {
    async fn same(mut request: Request) -> Result<Json<Point>, ContentError> {
        let point: Point = request.json(40).await?;
        Ok(Json(point))
    }
    Router::new().put("/", same)
}

fn put_json(content: impl AsRef<[u8]>) -> String {
    let head = "PUT / HTTP/1.1\r\nContent-Type: application/json";
    ask(&json(), head, content)
}

#[test]
fn json_is_read_and_returned() {
    let response = put_json(r#"{"x": 7, "name": "a\"ü"}"#);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(
        response.contains("\r\nContent-Type: application/json\r\n"),
        "{response}"
    );
    assert!(
        response.ends_with("\r\n\r\n{\"x\":7,\"name\":\"a\\\"ü\"}"),
        "{response}"
    );
    for accepted in [
        "APPLICATION/JSON; charset=utf-8",
        "application/problem+json",
        "application/json;q=1\r\nContent-Encoding: identity",
    ] {
        let head = format!("PUT / HTTP/1.1\r\nContent-Type: {accepted}");
        let response = ask(&json(), &head, r#"{"x": 7}"#);
        assert!(
            response.starts_with("HTTP/1.1 200 "),
            "{accepted}: {response}"
        );
    }
}

#[test]
fn content_of_another_type_is_415_with_what_is_accepted() {
    for refused in [
        "",
        "\r\nContent-Type: text/plain",
        "\r\nContent-Type: application/jsonp",
        "\r\nContent-Type: application/x-www-form-urlencoded",
        "\r\nContent-Type: \u{fc}",
    ] {
        let response = ask(&json(), &format!("PUT / HTTP/1.1{refused}"), r#"{"x": 7}"#);
        assert!(
            response.starts_with("HTTP/1.1 415 "),
            "{refused}: {response}"
        );
        assert!(
            response.contains("\r\nAccept: application/json\r\n"),
            "{response}"
        );
    }
    let head = "PUT / HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip";
    let response = ask(&json(), head, r#"{"x": 7}"#);
    assert!(response.starts_with("HTTP/1.1 415 "), "{response}");
    assert!(
        response.contains("\r\nAccept-Encoding: identity\r\n"),
        "{response}"
    );
}

#[test]
fn content_that_is_too_long_is_413_with_and_without_a_length() {
    let long = format!(r#"{{"x": 7, "name": "{}"}}"#, "a".repeat(40));
    let response = put_json(&long);
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");

    let mut sim = calm(&json(), Limits::default());
    let client = sim.connect();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
    let chunked = format!(
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}",
        long.len()
    );
    sim.send(&client, format!("{head}{chunked}\r\n0\r\n\r\n").as_bytes());
    let response = String::from_utf8(client.receive().unwrap()).unwrap();
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
}

#[test]
fn wrong_json_is_400_with_the_place_and_without_the_content() {
    for (content, says) in [
        ("", "the JSON ends early, line 1, column 0\n"),
        (r#"{"x": 7"#, "the JSON ends early, line 1, column 7\n"),
        (
            "{\n \"x\" secret}",
            "the content is not JSON, line 2, column 6\n",
        ),
        (
            r#"{"x": 7} secret"#,
            "the content is not JSON, line 1, column 10\n",
        ),
        (
            "{\"x\": \"secret\"}",
            "the field `x` of the JSON has another form than expected, line 1, column 14\n",
        ),
        (
            "{\"x\": 999}",
            "the field `x` of the JSON has another form than expected, line 1, column 9\n",
        ),
        ("{}", "the JSON has no field `x`, line 1, column 2\n"),
        (
            "[\"secret\"]",
            "the JSON has another form than expected, line 1, column 9\n",
        ),
    ] {
        let response = put_json(content);
        assert!(
            response.starts_with("HTTP/1.1 400 "),
            "{content}: {response}"
        );
        assert!(
            response.ends_with(&format!("\r\n\r\n{says}")),
            "{content}: {response}"
        );
    }
    let response = put_json(b"{\"x\": 7, \"name\": \"\xff\"}");
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
}

#[test]
fn the_program_can_log_what_a_client_does_not_get() {
    async fn shows_source(mut request: Request) -> Response {
        let error = request.json::<Point>(100).await.unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        Response::text(error.source().unwrap().to_string())
    }
    let router = Router::new().put("/", shows_source);
    let head = "PUT / HTTP/1.1\r\nContent-Type: application/json";
    let response = ask(&router, head, r#"{"x": "secret"}"#);
    assert!(response.contains("\"secret\", expected i8"), "{response}");
}

#[test]
fn deep_json_does_not_use_up_the_stack() {
    async fn any(mut request: Request) -> Result<Json<serde_json::Value>, ContentError> {
        Ok(Json(request.json(1 << 20).await?))
    }
    let router = Router::new().put("/", any);
    let head = "PUT / HTTP/1.1\r\nContent-Type: application/json";
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    let response = ask(&router, head, nested(127));
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let response = ask(&router, head, nested(100_000));
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
}

#[test]
fn a_value_that_has_no_json_is_500() {
    let map = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert_eq!(Json(map).into_response().status(), 500);
}

#[test]
fn pairs_of_a_query_are_decoded_in_order() {
    async fn list(request: Request) -> Result<String, ContentError> {
        assert_eq!(request.query_pairs().get("missing"), None);
        let pairs = request
            .query_pairs()
            .map(|(name, value)| format!("{name}={value};"));
        Ok(pairs.collect())
    }
    let router = Router::new().get("/", list);
    for (target, pairs) in [
        ("/", ""),
        ("/?", ""),
        ("/?a=1&b=%C3%BC+%2B&a=2", "a=1;b=ü +;a=2;"),
        ("/?a&&=b&c==", "a=;=b;c==;"),
        ("/?a=%FF%zz%", "a=\u{fffd}%zz%;"),
    ] {
        let response = ask(&router, &format!("GET {target} HTTP/1.1"), "");
        assert!(
            response.ends_with(&format!("\r\n\r\n{pairs}")),
            "{target}: {response}"
        );
    }
}

#[test]
fn a_form_is_read_and_what_is_no_form_is_refused() {
    async fn read(mut request: Request) -> Result<String, ContentError> {
        let form = request.form(20).await?;
        assert!(!format!("{form:?}").contains('x'));
        let first = form.get("a").unwrap_or_default().into_owned();
        Ok(format!("{first}, {} pairs", form.pairs().count()))
    }
    let router = Router::new().post("/", read);
    let head = "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded";
    for (content, end) in [("a=x+%26&a=2&b=", "x &, 3 pairs"), ("", ", 0 pairs")] {
        let response = ask(&router, head, content);
        assert!(response.ends_with(end), "{content}: {response}");
    }
    let response = ask(&router, head, "a=".to_owned() + &"x".repeat(19));
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    let response = ask(
        &router,
        "POST / HTTP/1.1\r\nContent-Type: text/plain",
        "a=1",
    );
    assert!(response.starts_with("HTTP/1.1 415 "), "{response}");
    let accepts = "\r\nAccept: application/x-www-form-urlencoded\r\n";
    assert!(response.contains(accepts), "{response}");
}

#[derive(Deserialize)]
struct Search {
    author: String,
    page: Option<u8>,
    #[serde(default)]
    tag: Vec<String>,
}

impl Search {
    fn text(&self) -> String {
        let Search { author, page, tag } = self;
        format!("{author}, {page:?}, {tag:?}")
    }
}

const FORM: &str = "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded";

#[test]
fn a_query_and_a_form_are_values() {
    async fn query(request: Request) -> Result<String, ContentError> {
        Ok(request.query_as::<Search>()?.text())
    }
    async fn form(mut request: Request) -> Result<String, ContentError> {
        Ok(request.form_as::<Search>(50).await?.text())
    }
    let router = Router::new().get("/", query).post("/", form);
    for (fields, value) in [
        ("author=Ada+L%2E&page=7", "Ada L., Some(7), []"),
        ("tag=a&author=&tag=b&page&x=y", ", None, [\"a\", \"b\"]"),
    ] {
        let by_query = ask(&router, &format!("GET /?{fields} HTTP/1.1"), "");
        for response in [by_query, ask(&router, FORM, fields)] {
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            assert!(
                response.ends_with(&format!("\r\n\r\n{value}")),
                "{response}"
            );
        }
    }
    for (fields, says) in [
        ("", "the {} has no field `author`"),
        ("page=1", "the {} has no field `author`"),
        (
            "author=a&page=secret",
            "the field `page` of the {} has another form than expected",
        ),
        (
            "author=a&page=1&page=2",
            "the field `page` of the {} has another form than expected",
        ),
        (
            "author=a&author=secret",
            "the field `author` of the {} has another form than expected",
        ),
    ] {
        let by_query = ask(&router, &format!("GET /?{fields} HTTP/1.1"), "");
        let by_form = ask(&router, FORM, fields);
        for (response, status, whole) in [(by_query, 400, "query"), (by_form, 422, "form")] {
            let starts = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&starts), "{fields}: {response}");
            let says = says.replace("{}", whole);
            assert!(
                response.ends_with(&format!("\r\n\r\n{says}\n")),
                "{response}"
            );
        }
    }
    let none = ask(&router, "GET / HTTP/1.1", "");
    assert!(
        none.ends_with("the query has no field `author`\n"),
        "{none}"
    );
    let long = ask(&router, FORM, format!("author={}", "a".repeat(44)));
    assert!(long.starts_with("HTTP/1.1 413 "), "{long}");
    let other = "POST / HTTP/1.1\r\nContent-Type: application/json";
    let other = ask(&router, other, "author=a");
    assert!(other.starts_with("HTTP/1.1 415 "), "{other}");
    let compressed = format!("{FORM}\r\nContent-Encoding: gzip");
    let compressed = ask(&router, &compressed, "author=a");
    assert!(compressed.starts_with("HTTP/1.1 415 "), "{compressed}");
}

#[test]
fn the_program_can_log_what_a_client_does_not_get_of_a_form() {
    async fn shows_source(request: Request) -> Response {
        let error = request.query_as::<Search>().err().unwrap();
        assert!(!error.to_string().contains("999"), "{error}");
        Response::text(error.source().unwrap().to_string())
    }
    let router = Router::new().get("/", shows_source);
    let response = ask(&router, "GET /?author=a&page=999 HTTP/1.1", "");
    assert!(
        response.ends_with("number too large to fit in target type"),
        "{response}"
    );
}

#[test]
fn a_form_that_breaks_off_is_not_read() {
    async fn form(mut request: Request) -> Result<String, ContentError> {
        Ok(request.form_as::<Search>(50).await?.text())
    }
    let router = Router::new().post("/", form);
    let mut sim = calm(&router, Limits::default());
    let client = sim.connect();
    let head = format!("{FORM}\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    sim.send(&client, format!("{head}8\r\nauthor=a\r\nx").as_bytes());
    let response = String::from_utf8(client.receive().unwrap()).unwrap();
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
}

#[test]
fn cookies_are_read_from_all_lines_and_what_is_no_cookie_is_left_out() {
    async fn list(request: Request) -> String {
        let pairs = request.cookies().map(|cookie| {
            let (name, value) = cookie.name_value();
            format!("{name}={value};")
        });
        pairs.collect()
    }
    let router = Router::new().get("/", list);
    for (fields, cookies) in [
        ("", ""),
        ("\r\nCookie: a=1; b=x=y;c = \"2\" ", "a=1;b=x=y;c=\"2\";"),
        ("\r\nCookie: a=1\r\ncookie: a=2", "a=1;a=2;"),
        ("\r\nCookie: Secure; =x; ; a=; a=%20", "a=;a=%20;"),
        ("\r\nCookie: Path=/; HttpOnly=1", "Path=/;HttpOnly=1;"),
    ] {
        let response = ask(&router, &format!("GET / HTTP/1.1{fields}"), "");
        assert!(
            response.ends_with(&format!("\r\n\r\n{cookies}")),
            "{fields}: {response}"
        );
    }
    let mut sim = calm(&router, Limits::default());
    let client = sim.connect();
    sim.send(
        &client,
        b"GET / HTTP/1.1\r\nHost: a\r\nCookie: a=\xff; b=1\r\n\r\n",
    );
    assert!(client.receive().unwrap().ends_with(b"\r\n\r\nb=1;"));
}

#[test]
fn a_redirect_has_a_location_that_can_be_nothing_else() {
    for status in [301, 302, 303, 307, 308] {
        let response = Response::redirect(status, "/a").unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(response.header("location"), Some(&b"/a"[..]));
    }
    for (location, sent) in [
        ("https://a.example/b?c=d&e#f", "https://a.example/b?c=d&e#f"),
        (" /a%20b/ü ", "%20/a%20b/%C3%BC%20"),
        ("/\\evil.example", "/%5Cevil.example"),
    ] {
        let response = Response::redirect(303, location).unwrap();
        assert_eq!(
            response.header("location"),
            Some(sent.as_bytes()),
            "{location}"
        );
    }
    for refused in ["", "/\r\nA: b", "/\n", "/\0", "/\u{7f}", "\t"] {
        let error = Response::redirect(303, refused).unwrap_err();
        assert_eq!(error, FieldError::Value, "{refused:?}");
        assert_eq!(error.into_response().status(), 500);
    }
}

#[test]
#[should_panic(expected = "not the status of a redirect: 304")]
fn a_redirect_with_another_status_is_a_mistake() {
    let _ = Response::redirect(304, "/");
}
