//! Tests of applications by single requests (`onrush::testing`).

use onrush::testing::{self, Ask};
use onrush::{Body, Request, Response, Router, Trailers};
use std::io;
use std::time::Duration;

/// Content of `bytes` bytes in pieces, with a trailer.
async fn pieces(request: Request) -> Response {
    let bytes: usize = request.param("bytes").unwrap().parse().unwrap();
    let (mut sender, body) = Body::channel(1000);
    let trailers = Trailers::new();
    let body = body.with_trailers(trailers.clone());
    let worker = request.worker().clone();
    let task = request.worker().spawn(async move {
        for piece in vec![b'x'; bytes].chunks(70_000) {
            worker.sleep(Duration::from_secs(60)).await;
            sender.send(piece.to_vec()).await.unwrap();
        }
        trailers.append("X-Sum", "1").unwrap();
        sender.finish();
    });
    task.detach();
    Response::text(body)
}

#[test]
fn an_answer_has_status_fields_and_the_whole_content() {
    let router = Router::new()
        .get("/pieces/{bytes}", pieces)
        .get("/large", async |_: Request| vec![b'y'; 3_000_000])
        .get("/none", async |_: Request| 204);
    for bytes in [0, 1, 70_000, 1_000_000] {
        let answer = testing::get(&router, &format!("/pieces/{bytes}"));
        assert_eq!((answer.status, answer.body.len()), (200, bytes));
        assert!(answer.body.iter().all(|&byte| byte == b'x'));
        assert_eq!(answer.header("TRANSFER-ENCODING"), Some("chunked"));
    }
    assert_eq!(testing::get(&router, "/large").body, vec![b'y'; 3_000_000]);
    let answer = Ask::new("HEAD", "/large").send(&router);
    assert_eq!(answer.header("content-length"), Some("3000000"));
    assert_eq!((answer.status, answer.text()), (200, ""));
    assert_eq!(testing::get(&router, "/none").status, 204);
    assert_eq!(testing::get(&router, "/unknown").status, 404);
}

#[test]
fn a_request_has_its_method_fields_and_body() {
    async fn echo(mut request: Request) -> io::Result<Vec<u8>> {
        let interim = request.body().interim_responses();
        assert_eq!(interim.send(104, &[]), Ok(true));
        let mut all = format!("{} {:?} ", request.method(), request.header_str("X-A"));
        let body = request.body().read_all(5_000_000).await?;
        all.push_str(&body.len().to_string());
        Ok(all.into_bytes())
    }
    let ask = Ask::new("PUT", "/").header("X-A", "b");
    let answer = ask.clone().body(vec![b'z'; 4_000_000]).send(&echo);
    assert_eq!(answer.text(), "PUT Some(\"b\") 4000000");
    let answer = ask.body(vec![b'z'; 5_000_001]).send(&echo);
    assert_eq!(answer.status, 413);
}

#[test]
#[should_panic(expected = "the response is not whole")]
fn a_response_that_breaks_off_is_no_answer() {
    let breaks = async |request: Request| {
        let (mut sender, body) = Body::channel(1000);
        let task = request.worker().spawn(async move {
            sender.send("x").await.unwrap();
            sender.abort(io::Error::other("the source has failed"));
        });
        task.detach();
        Response::text(body)
    };
    testing::get(&breaks, "/");
}
