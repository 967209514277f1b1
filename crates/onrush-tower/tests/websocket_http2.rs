//! WebSocket by axum's own extractor over HTTP/2: extended CONNECT (RFC 8441). The same router on
//! `axum::serve` gives the same responses.

use crate::apps;
use crate::same::drivers;
use axum::Router;
use axum::extract::Request;
use axum::routing::{any, get};
use http::StatusCode;
use hyper_util::rt::TokioIo;
use onrush::Server;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use testing::http2::Client;
use testing::read_some;
use tokio::io::AsyncReadExt;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

/// One connection of HTTP/2.
struct Connection {
    stream: TcpStream,
    client: Client,
}

impl Connection {
    fn new(address: SocketAddr) -> Connection {
        let client = Client::with_settings(&[(4, 1 << 20)]);
        let stream = TcpStream::connect(address).expect("a server");
        Connection { stream, client }
    }

    fn flush(&mut self) -> io::Result<()> {
        let out = self.client.take_out();
        self.stream.write_all(&out)
    }

    /// Sends what there is, and receives something.
    fn step(&mut self) -> io::Result<()> {
        self.flush()?;
        let mut piece = vec![0; 1 << 16];
        match read_some(&mut self.stream, &mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => self.client.receive(&piece[..n]),
        }
        self.flush()
    }

    /// Sends an extended CONNECT for WebSocket. Returns its stream, and the status of the answer.
    fn connect(&mut self, path: &str, more: &[(&str, &str)]) -> (u32, u16) {
        let version = [("sec-websocket-version", "13")];
        let fields = [&version[..], more].concat();
        let stream = self.client.connect("websocket", path, &fields);
        while self.client.answer(stream).status == 0 {
            self.step().expect("an answer");
        }
        (stream, self.client.answer(stream).status)
    }

    /// A WebSocket.
    fn join(mut self, path: &str) -> WebSocket<Tunnel> {
        let (stream, status) = self.connect(path, &[("sec-websocket-protocol", "none, other")]);
        let answer = self.client.answer(stream);
        assert_eq!(
            (status, answer.field("sec-websocket-protocol")),
            (200, Some("other"))
        );
        for absent in [
            "sec-websocket-accept",
            "upgrade",
            "connection",
            "content-length",
        ] {
            assert_eq!(answer.field(absent), None, "{absent}");
        }
        let tunnel = Tunnel {
            connection: self,
            stream,
            read: 0,
            sent: 0,
        };
        WebSocket::from_raw_socket(tunnel, Role::Client, None)
    }
}

/// A stream of another protocol, as a client reads and writes it.
struct Tunnel {
    connection: Connection,
    stream: u32,
    read: usize,
    sent: usize,
}

impl Read for Tunnel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let answer = self.connection.client.answer(self.stream);
            let rest = &answer.body[self.read..];
            if !rest.is_empty() {
                let bytes = rest.len().min(into.len());
                into[..bytes].copy_from_slice(&rest[..bytes]);
                self.read += bytes;
                return Ok(bytes);
            }
            match answer {
                answer if answer.reset.is_some() => return Err(ErrorKind::ConnectionReset.into()),
                answer if answer.is_complete => return Ok(0),
                _ => self.connection.step()?,
            }
        }
    }
}

impl Write for Tunnel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let client = &mut self.connection.client;
            let of = |stream| client.room.get(&stream).copied().unwrap_or_default() as usize;
            // Nothing else is sent on the connection that windows count.
            let initial = client.settings.iter().find(|(name, _)| *name == 4);
            let initial = initial.map_or(65_535, |(_, bytes)| *bytes as usize);
            let room = (initial + of(self.stream)).min(65_535 + of(0)) - self.sent;
            if room > 0 {
                let taken = bytes.len().min(room).min(16_384);
                client.data(self.stream, &bytes[..taken], false);
                self.sent += taken;
                self.connection.flush()?;
                return Ok(taken);
            }
            self.connection.step()?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}

/// Serves `app` with `axum::serve`, and with each driver.
fn everywhere(app: impl Fn() -> Router, check: impl Fn(&str, SocketAddr)) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _context = runtime.enter();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("bound");
    let address = listener.local_addr().expect("an address");
    let served = app();
    runtime.spawn(async { axum::serve(listener, served).await });
    check("axum", address);
    for driver in drivers() {
        let server = Server::bind("127.0.0.1:0").workers(2).driver(driver);
        let server = server.extended_connect(true);
        let running = onrush_tower::serve(server, app()).start().expect("started");
        let address = running.address().to_string().parse().expect("an address");
        check(&format!("{driver:?}"), address);
        running.handle().shutdown_now();
        running.wait().expect("no worker failed");
    }
}

#[test]
fn a_chat_over_http_2() {
    let _dog = testing::watchdog("a_chat_over_http_2");
    everywhere(apps::chat, |server, address| {
        let mut clients: Vec<_> = (0..3).map(|_| Connection::new(address).join("/")).collect();
        for client in &mut clients {
            assert_eq!(
                client.read().expect("a message"),
                Message::from("welcome"),
                "{server}"
            );
        }
        for round in 0..12 {
            let said = format!("round {round} {}", "x".repeat(round * 500));
            clients[round % 3]
                .send(Message::from(said.clone()))
                .expect("sent");
            for client in &mut clients {
                let heard = client.read().expect("a message").into_text().expect("text");
                assert_eq!(heard, said, "{server}");
            }
        }
        let large = vec![7; 700_000];
        clients[0].send(Message::from(large.clone())).expect("sent");
        let echoed = clients[0].read().expect("a message").into_data();
        assert!(echoed == large, "{server}");
        // The end by either side.
        clients[1].send(Message::from("leave")).expect("sent");
        assert!(
            matches!(clients[1].read(), Ok(Message::Close(_))),
            "{server}"
        );
        clients[2].close(None).expect("closing");
        while clients[2].read().is_ok() {}
        let tunnel = clients[2].get_ref();
        let answer = tunnel.connection.client.answer(tunnel.stream);
        // hyper resets it behind its end.
        let has_failed = answer.reset.is_some_and(|code| code > 0);
        assert!(answer.is_complete && !has_failed, "{server}: {answer:?}");
    });
}

#[test]
fn requests_that_are_no_websocket_get_the_same_response() {
    async fn page() -> &'static str {
        "a page"
    }
    let app = || {
        apps::chat()
            .route("/get-only", get(page))
            .route("/page", any(page))
    };
    let _dog = testing::watchdog("requests_that_are_no_websocket_get_the_same_response");
    everywhere(app, |server, address| {
        let status = |protocol: &str, path: &str, fields: &[(&str, &str)]| {
            let mut connection = Connection::new(address);
            let stream = connection.client.connect(protocol, path, fields);
            while connection.client.answer(stream).status == 0 {
                connection.step().expect("an answer");
            }
            connection.client.answer(stream).status
        };
        let version = ("sec-websocket-version", "13");
        assert_eq!(status("websocket", "/", &[version]), 200, "{server}");
        assert_eq!(status("websocket", "/", &[]), 400, "{server}");
        assert_eq!(status("other", "/", &[version]), 400, "{server}");
        assert_eq!(status("websocket", "/none", &[version]), 404, "{server}");
        assert_eq!(
            status("websocket", "/get-only", &[version]),
            405,
            "{server}"
        );
        // axum takes the content away, so this is the same as a socket that ends at once.
        assert_eq!(status("websocket", "/page", &[version]), 200, "{server}");
        // A GET of HTTP/2 asks for nothing.
        let mut connection = Connection::new(address);
        let stream = connection.client.get("/");
        while !connection.client.answer(stream).is_complete {
            connection.step().expect("an answer");
        }
        assert_eq!(connection.client.answer(stream).status, 405, "{server}");
    });
}

/// Says how reading ended.
#[test]
fn a_reset_is_an_error_of_the_application_and_an_end_is_none() {
    let _dog = testing::watchdog("a_reset_is_an_error_of_the_application_and_an_end_is_none");
    let (ends, ended) = mpsc::channel();
    let app = move || {
        let ends = ends.clone();
        let read = move |mut request: Request| {
            let ends = ends.clone();
            assert_eq!(request.headers().get("upgrade"), None);
            let on_upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(on_upgrade.await.expect("an upgrade"));
                let mut read = String::new();
                let end = stream.read_to_string(&mut read).await;
                let _ = ends.send(end.map(|_| read).map_err(|error| error.kind()));
            });
            async { StatusCode::OK }
        };
        Router::new().route("/", any(read))
    };
    everywhere(app, |server, address| {
        let mut connection = Connection::new(address);
        let (stream, status) = connection.connect("/", &[]);
        assert_eq!(status, 200, "{server}");
        connection.client.data(stream, b"all of it", true);
        connection.flush().expect("sent");
        assert_eq!(
            ended.recv().expect("an end"),
            Ok("all of it".to_owned()),
            "{server}"
        );
        let (stream, _) = connection.connect("/", &[]);
        connection.client.data(stream, b"some", false);
        // hyper takes a CANCEL for an end.
        let code = if server == "axum" { 2 } else { 8 };
        connection.client.reset(stream, code);
        connection.flush().expect("sent");
        assert!(ended.recv().expect("an end").is_err(), "{server}");
    });
}
