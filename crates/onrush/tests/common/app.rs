//! The application that the scripts use.

use onrush::{Body, Bytes, Request, Response};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A stream of pieces that is pending at every second poll.
pub struct Pieces {
    left: VecDeque<io::Result<Bytes>>,
    waits: bool,
}

impl Pieces {
    pub fn new(pieces: impl IntoIterator<Item = &'static [u8]>) -> Pieces {
        let pieces = pieces.into_iter();
        Pieces {
            left: pieces.map(|piece| Ok(Bytes::from_static(piece))).collect(),
            waits: false,
        }
    }

    pub fn then_fail(mut self) -> Pieces {
        self.left.push_back(Err(io::Error::other("on purpose")));
        self
    }
}

impl futures_core::Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.waits = !self.waits;
        if self.waits {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.left.pop_front())
    }
}

/// A stream of a given number of bytes, in pieces of 64 KiB, made one by one.
pub struct Endless {
    pub left: u64,
}

impl futures_core::Stream for Endless {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];
        let n = self.left.min(PIECE.len() as u64);
        self.left -= n;
        Poll::Ready((n > 0).then(|| Ok(Bytes::from_static(&PIECE[..n as usize]))))
    }
}

const THREE: [&[u8]; 3] = [b"one ", b"two ", b"three"];

pub async fn app(mut request: Request) -> Response {
    let path = request.path().to_owned();
    match path.as_str() {
        "/hello" => Response::text("hello"),
        "/echo" => echo(request).await,
        "/fill" => fill(request, false).await,
        "/whole" => fill(request, true).await,
        "/discard" => match request.body().discard().await {
            Ok(bytes) => Response::text(format!("{bytes} bytes")),
            Err(_) => Response::new(200),
        },
        "/limit" => match request.body().set_limit(10) {
            Ok(()) => echo(request).await,
            Err(_) => Response::new(200),
        },
        "/own-failure" => match request.body().read_all(1 << 20).await {
            Ok(_) => Response::new(200),
            Err(_) => Response::text("my own words").with_status(422),
        },
        "/early" => Response::text("early"),
        "/late" => {
            request.worker().sleep(Duration::from_millis(3)).await;
            Response::text("late")
        }
        "/interim" => {
            let interim = request.body().interim_responses();
            let _ = interim.send(104, &[("Location", b"/upload/1")]);
            echo(request).await
        }
        "/stream-echo" => stream_echo(request),
        "/late-echo" => {
            request.worker().sleep(Duration::from_millis(3)).await;
            echo(request).await
        }
        "/big" => Response::with_body(super::pattern(300_000)),
        "/late-big" => {
            request.worker().sleep(Duration::from_millis(1)).await;
            Response::with_body(super::pattern(300_000))
        }
        "/stream" => Response::with_body(Body::stream(Pieces::new(THREE), None)),
        "/sized" => Response::with_body(Body::stream(Pieces::new(THREE), Some(13))),
        "/short" => Response::with_body(Body::stream(Pieces::new(THREE), Some(14))),
        "/long" => Response::with_body(Body::stream(Pieces::new(THREE), Some(12))),
        "/broken" => Response::with_body(Body::stream(Pieces::new(THREE).then_fail(), None)),
        "/nothing" => Response::new(204),
        "/no-content" => Response::text("must not be seen").with_status(204),
        "/not-modified" => Response::text("must not be seen").with_status(304),
        "/reset-content" => Response::text("must not be seen").with_status(205),
        "/streamed-204" => {
            Response::with_body(Body::stream(Pieces::new(THREE), None)).with_status(204)
        }
        "/close" => Response::text("bye").close(),
        "/fields" => Response::text("x")
            .with_header("X-Method", request.method())
            .with_header("X-Target", request.target())
            .with_header("X-Query", request.query().unwrap_or("-"))
            .with_header("X-Version", format!("{:?}", request.version())),
        "/panic" => panic!("on purpose: at the first poll"),
        "/late-panic" => {
            request.worker().sleep(Duration::from_millis(1)).await;
            panic!("on purpose: at a later poll")
        }
        _ => Response::text("nothing here\n").with_status(404),
    }
}

/// Begins the response before it reads the body, and sends it back.
fn stream_echo(request: Request) -> Response {
    let worker = request.worker().clone();
    let (mut sender, content) = Body::channel(1024);
    let mut body = request.into_body();
    let copy = async move {
        // As one piece, so that the chunks do not depend on how the body arrives.
        match body.read_all(1024).await {
            Ok(all) => {
                let _ = sender.send(Bytes::from(all)).await;
                sender.finish();
            }
            Err(error) => sender.abort(error),
        }
    };
    worker.spawn(copy).detach();
    Response::with_body(content)
}

async fn echo(mut request: Request) -> Response {
    let mut all = Vec::new();
    while let Some(piece) = request.body().next().await {
        match piece {
            Ok(piece) => all.extend_from_slice(&piece),
            // A success, which the server must not send.
            Err(_) => return Response::text("read a part"),
        }
    }
    if let Some(trailers) = request.body().take_trailers() {
        all.extend_from_slice(b"|");
        all.extend_from_slice(&trailers);
    }
    Response::with_body(all)
}

/// Reads a body into its own buffer, full or in parts, and responds with its length and sum.
async fn fill(mut request: Request, whole: bool) -> Response {
    let (mut bytes, mut sum) = (0, 0u64);
    let mut room = Vec::with_capacity(100_000);
    loop {
        room.clear();
        let body = request.body();
        let filled = match whole {
            true => body.fill_whole(&mut room).await,
            false => body.fill(&mut room).await,
        };
        match filled {
            Ok(0) => return Response::text(format!("{bytes} bytes, sum {sum}")),
            Ok(n) => {
                assert_eq!(n, room.len());
                bytes += n;
                sum += room.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            }
            Err(_) => return Response::text("read a part"),
        }
    }
}
