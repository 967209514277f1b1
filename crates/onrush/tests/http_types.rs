//! Types of the crate `http`: heads in both directions, and what is accepted in place of text.

use crate::common::calm;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use onrush::http_types::{Unrepresentable, UnrepresentableResponse};
use onrush::{Body, IntoResponse, Limits, Request, RequestBody, Response, Router};

/// The response of `router` to `request`, as text.
fn ask(router: &Router, request: &str) -> String {
    let mut sim = calm(router, Limits::default());
    let client = sim.connect();
    sim.send(&client, request.as_bytes());
    String::from_utf8(client.receive().unwrap()).unwrap()
}

#[test]
fn a_request_keeps_every_part_of_its_head_and_its_body() {
    async fn check(request: Request) -> Result<Vec<u8>, Unrepresentable> {
        let mut request = http::Request::<RequestBody>::try_from(request)?;
        assert_eq!(request.method(), "PATCH");
        assert_eq!(request.uri(), "/a%20b?c=d");
        assert_eq!(request.version(), http::Version::HTTP_11);
        let tags: Vec<_> = request.headers().get_all("x-tag").iter().collect();
        assert_eq!(tags, ["1", "2"]);
        Ok(request.body_mut().read_all(10).await.unwrap())
    }
    let head = "PATCH /a%20b?c=d HTTP/1.1\r\nHost: a\r\nX-Tag: 1\r\nX-Tag: 2\r\n";
    let request = format!("{head}Content-Length: 4\r\n\r\nbody");
    let response = ask(&Router::new().any("/{*path}", check), &request);
    assert!(response.ends_with("\r\n\r\nbody"), "{response}");
}

#[test]
fn a_response_keeps_status_fields_and_content() {
    let made = http::Response::builder()
        .status(StatusCode::IM_A_TEAPOT)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::SET_COOKIE, "a=1")
        .header(header::SET_COOKIE, " b=2 ")
        .header(header::CONTENT_LENGTH, "99")
        .body("{}")
        .unwrap();
    let response = Response::try_from(made).unwrap();
    assert_eq!(response.status(), 418);
    assert_eq!(
        response.header("content-type"),
        Some(&b"application/json"[..])
    );
    let cookies: Vec<_> = response.header_values(header::SET_COOKIE).collect();
    assert_eq!(cookies, [b"a=1", b"b=2"]);
    assert_eq!(response.header(header::CONTENT_LENGTH), None);
    assert_eq!(response.body().length(), Some(2));

    let back = http::Response::<Body>::try_from(response.close()).unwrap();
    assert_eq!(back.status(), 418);
    assert_eq!(back.headers().get_all("set-cookie").iter().count(), 2);
    assert_eq!(back.headers()[header::CONNECTION], "close");
    assert_eq!(back.body().length(), Some(2));
}

#[test]
fn connection_close_of_a_response_closes_the_connection() {
    async fn bye(_: Request) -> http::Response<&'static str> {
        let mut response = http::Response::new("bye");
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        response
    }
    let router = Router::new().get("/", bye);
    let response = ask(&router, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(response.contains("\r\nConnection: close\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\nbye"), "{response}");
}

#[test]
fn a_status_that_is_not_final_is_an_error() {
    for status in [StatusCode::CONTINUE, StatusCode::from_u16(600).unwrap()] {
        let mut made = http::Response::new("");
        *made.status_mut() = status;
        let error = Response::try_from(made.map(str::to_owned)).unwrap_err();
        assert_eq!(error, UnrepresentableResponse::Status);
        assert_eq!(error.into_response().status(), 500);
        let mut made = http::Response::new("");
        *made.status_mut() = status;
        assert_eq!(made.into_response().status(), 500);
    }
}

#[test]
fn a_target_that_the_crate_http_refuses_is_400() {
    async fn convert(request: Request) -> Result<&'static str, Unrepresentable> {
        http::Request::<RequestBody>::try_from(request).map(|_| "converted")
    }
    let limits = Limits::default()
        .target_bytes_max(1 << 17)
        .head_bytes_max(1 << 17);
    let mut sim = calm(&convert, limits);
    let client = sim.connect();
    let target = "a".repeat(1 << 16);
    sim.send(
        &client,
        format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
    );
    let response = String::from_utf8(client.receive().unwrap()).unwrap();
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    assert!(response.ends_with("unsupported target\n"), "{response}");
}

#[test]
fn types_of_the_crate_are_accepted_in_place_of_text_and_numbers() {
    async fn made(request: Request) -> Response {
        assert!(request.method() == Method::from_bytes(b"MAKE").unwrap());
        assert_eq!(request.header(header::HOST), Some(&b"a"[..]));
        assert_eq!(request.header_str(&header::HOST), Some("a"));
        assert_eq!(request.header_values(header::HOST).count(), 1);
        Response::new(StatusCode::CREATED)
            .with_header(header::LOCATION, HeaderValue::from_static("/7"))
            .with_header(HeaderName::from_static("x-a"), "b")
    }
    let router = Router::new()
        .method(Method::from_bytes(b"MAKE").unwrap(), "/", made)
        .method(Method::GET, "/status", async |_: Request| {
            StatusCode::ACCEPTED
        })
        .method("GET", "/both", async |_: Request| {
            (StatusCode::CONFLICT, "no")
        });
    let response = ask(&router, "MAKE / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 201 "), "{response}");
    assert!(
        response.contains("location: /7\r\nx-a: b\r\n"),
        "{response}"
    );
    let response = ask(&router, "GET /status HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 202 "), "{response}");
    let response = ask(&router, "GET /both HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 409 "), "{response}");
    let response = ask(&router, "PUT / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        response.contains("\r\nAllow: MAKE, OPTIONS\r\n"),
        "{response}"
    );
}
