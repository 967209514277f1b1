//! gRPC: the services of tonic are tower services, and their calls are requests of HTTP/2 with
//! trailers. The client is tonic's as well.

use bytes::{Buf, BufMut, Bytes};
use futures_util::{StreamExt, stream};
use http::Uri;
use http::uri::PathAndQuery;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use tower::service_fn;

/// Messages are bytes.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let bytes = from.remaining();
        Ok(Some(from.copy_to_bytes(bytes)))
    }
}

type Messages = Pin<Box<dyn futures_util::Stream<Item = Result<Bytes, Status>> + Send>>;

/// Returns the message, or fails if there is none.
#[derive(Clone, Copy)]
struct Echo;

impl tonic::server::UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let message = request.into_inner();
        ready(match message.is_empty() {
            true => Err(Status::invalid_argument("an empty message")),
            false => Ok(Response::new(message)),
        })
    }
}

impl tonic::server::StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Ready<Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner().boxed())))
    }
}

async fn serve(
    request: http::Request<onrush_tower::Body>,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(Raw);
    Ok(match request.uri().path() {
        "/test.Echo/One" => grpc.unary(Echo, request).await,
        "/test.Echo/Each" => grpc.streaming(Echo, request).await,
        _ => Status::unimplemented("no such method").into_http(),
    })
}

async fn client(address: std::net::SocketAddr) -> tonic::client::Grpc<Channel> {
    let uri = Uri::try_from(format!("http://{address}")).expect("an address");
    let channel = Channel::builder(uri).connect().await.expect("connected");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("ready");
    client
}

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

async fn check(address: std::net::SocketAddr) {
    let mut client = client(address).await;
    // A call, and one with a message of many frames.
    for message in [Bytes::from_static(b"one"), Bytes::from(vec![b'x'; 1 << 20])] {
        let request = Request::new(message.clone());
        let answer = client.unary(request, path("/test.Echo/One"), Raw).await;
        assert_eq!(answer.expect("an answer").into_inner(), message);
        client.ready().await.expect("ready");
    }
    // The status of a failure is in the head, because no message precedes it.
    let request = Request::new(Bytes::new());
    let failed = client.unary(request, path("/test.Echo/One"), Raw).await;
    let status = failed.expect_err("a status");
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "an empty message")
    );
    client.ready().await.expect("ready");
    let request = Request::new(Bytes::from_static(b"x"));
    let unknown = client.unary(request, path("/test.Echo/Other"), Raw).await;
    assert_eq!(unknown.expect_err("a status").code(), Code::Unimplemented);
    client.ready().await.expect("ready");
    // Both directions at once: each message is answered before the next one is sent.
    let (to_server, messages) = tokio::sync::mpsc::channel::<Bytes>(1);
    let messages = stream::unfold(messages, |mut messages| async move {
        Some((messages.recv().await?, messages))
    });
    let request = Request::new(messages);
    let answers = client
        .streaming(request, path("/test.Echo/Each"), Raw)
        .await;
    let mut answers = answers.expect("a stream").into_inner();
    for number in 0..100 {
        let message = Bytes::from(format!("message {number}"));
        to_server.send(message.clone()).await.expect("it is read");
        let answer = answers.message().await.expect("no failure");
        assert_eq!(answer, Some(message));
    }
    drop(to_server);
    assert_eq!(answers.message().await.expect("no failure"), None);
    let trailers = answers.trailers().await.expect("no failure");
    assert!(trailers.is_some(), "the status is behind the content");
}

#[test]
fn calls_with_one_message_and_with_many_in_both_directions() {
    let _dog = testing::watchdog("calls_with_one_message_and_with_many_in_both_directions");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("bound");
        tokio::select! {
            ended = onrush_tower::serve(listener, service_fn(serve)) => panic!("{ended:?}"),
            () = check(address) => {}
        }
    });
}
