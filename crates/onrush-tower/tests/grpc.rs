//! gRPC: the services of tonic are tower services, and their calls are requests of HTTP/2 with
//! trailers. The clients are tonic's, and in the nightly run those of Python and Go.

use bytes::{Buf, BufMut, Bytes};
use futures_util::{StreamExt, stream};
use http::Uri;
use http::uri::PathAndQuery;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testing::programs::{output_within, tool};
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

/// Counts the calls of `Each` that were not dropped.
#[derive(Clone, Default)]
struct Open(Arc<AtomicUsize>);

/// A call of `Each`.
struct Call(Open);

impl Call {
    fn new(open: &Open) -> Call {
        open.0.fetch_add(1, Ordering::Relaxed);
        Call(open.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        (self.0).0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns each message.
struct EchoEach(Open);

/// Returns the number of calls of `Each`.
struct CountOpen(Open);

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

impl tonic::server::UnaryService<Bytes> for CountOpen {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, _: Request<Bytes>) -> Self::Future {
        let Open(open) = &self.0;
        let text = open.load(Ordering::Relaxed).to_string();
        ready(Ok(Response::new(text.into())))
    }
}

impl tonic::server::StreamingService<Bytes> for EchoEach {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Ready<Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let call = Call::new(&self.0);
        let answers = request.into_inner().inspect(move |_| {
            let _ = &call;
        });
        ready(Ok(Response::new(answers.boxed())))
    }
}

async fn respond(
    open: Open,
    request: http::Request<onrush_tower::Body>,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(Raw);
    Ok(match request.uri().path() {
        "/test.Echo/One" => grpc.unary(Echo, request).await,
        "/test.Echo/Each" => grpc.streaming(EchoEach(open), request).await,
        "/test.Echo/Open" => grpc.unary(CountOpen(open), request).await,
        _ => Status::unimplemented("no such method").into_http(),
    })
}

async fn client(address: SocketAddr) -> tonic::client::Grpc<Channel> {
    let uri = Uri::try_from(format!("http://{address}")).expect("an address");
    let channel = Channel::builder(uri).connect().await.expect("connected");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("ready");
    client
}

fn path(method: &'static str) -> PathAndQuery {
    PathAndQuery::from_static(method)
}

async fn check(address: SocketAddr) {
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

/// Serves until `check` ends.
fn serve<C: Future<Output = ()>>(check: impl FnOnce(SocketAddr) -> C) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let open = Open::default();
    let service = service_fn(move |request| respond(open.clone(), request));
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("bound");
        tokio::select! {
            ended = onrush_tower::serve(listener, service) => panic!("{ended:?}"),
            () = check(address) => {}
        }
    });
}

#[test]
fn calls_with_one_message_and_with_many_in_both_directions() {
    let _dog = testing::watchdog("calls_with_one_message_and_with_many_in_both_directions");
    serve(check);
}

/// Runs a client of another language. It must print `done`.
fn serves(mut client: Command) {
    serve(async |address| {
        client.arg(address.to_string());
        let run = move || output_within(&mut client, Duration::from_secs(300));
        let output = tokio::task::spawn_blocking(run).await.expect("no panic");
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && out == "done\n", "{out}{err}");
    });
}

const SETUP_NIGHTLY: &str = "cargo xtask setup --nightly";

#[test]
#[ignore = "nightly"] // grpcio comes from PyPI
fn grpcio_calls_pings_and_gives_up() {
    let _dog = testing::watchdog("grpcio_calls_pings_and_gives_up");
    let Some(python) = tool("python/grpc/bin/python", SETUP_NIGHTLY) else {
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc_clients");
    let mut client = Command::new(python);
    client.arg(folder.join("client.py"));
    serves(client);
}

#[test]
#[ignore = "nightly"] // grpc-go is a module of Go
fn grpc_go_calls_pings_and_gives_up() {
    let _dog = testing::watchdog("grpc_go_calls_pings_and_gives_up");
    let Some(client) = tool("bin/grpc-client", SETUP_NIGHTLY) else {
        return;
    };
    serves(Command::new(client));
}
