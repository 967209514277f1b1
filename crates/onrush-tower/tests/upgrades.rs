//! WebSocket by axum's own extractor, and `hyper::upgrade::on`, unchanged on both servers.

use crate::client::{connect, exchange, receive_until, replies};
use crate::same::{Both, request, serve};
use crate::{apps, client};
use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tungstenite::{Message, WebSocket, client::IntoClientRequest};

fn everywhere(both: &Both, check: impl Fn(&str, SocketAddr)) {
    check("axum", both.axum);
    for (driver, address) in &both.onrush {
        check(driver, *address);
    }
}

fn join(address: SocketAddr) -> WebSocket<TcpStream> {
    let mut request = format!("ws://{address}/")
        .into_client_request()
        .expect("a request");
    let protocols = "none, other".parse().expect("a value");
    request
        .headers_mut()
        .insert("sec-websocket-protocol", protocols);
    // Without a time limit, signals interrupt no read. The watchdog ends a test that hangs.
    let stream = TcpStream::connect(address).expect("a server");
    let (mut socket, response) = tungstenite::client(request, stream).expect("a socket");
    assert_eq!(response.status(), 101);
    let field = |name: &str| {
        response
            .headers()
            .get(name)
            .map(|value| value.as_bytes().to_vec())
    };
    assert_eq!(field("sec-websocket-protocol"), Some(b"other".to_vec()));
    assert_eq!(field("content-length"), None);
    assert_eq!(socket.read().expect("a message"), Message::from("welcome"));
    socket
}

#[test]
fn a_chat_over_websocket() {
    let _dog = testing::watchdog("a_chat_over_websocket");
    everywhere(&serve(apps::chat), |server, address| {
        let mut clients: Vec<_> = (0..5).map(|_| join(address)).collect();
        for round in 0..20 {
            let said = format!("round {round} {}", "x".repeat(round * 500));
            clients[round % 5]
                .send(Message::from(said.clone()))
                .expect("sent");
            for client in &mut clients {
                assert_eq!(
                    client.read().expect("a message").into_text().expect("text"),
                    said
                );
            }
        }
        // Large messages, pings, and the end by either side.
        let large = vec![7; 700_000];
        clients[0].send(Message::from(large.clone())).expect("sent");
        let echoed = clients[0].read().expect("a message").into_data();
        assert!(echoed == large, "{server}");
        clients[0].send(Message::Ping("p".into())).expect("sent");
        assert_eq!(
            clients[0].read().expect("a pong"),
            Message::Pong("p".into())
        );
        clients[1].send(Message::from("leave")).expect("sent");
        assert!(
            matches!(clients[1].read(), Ok(Message::Close(_))),
            "{server}"
        );
        clients[2].close(None).expect("closing");
        while clients[2].read().is_ok() {}
        drop(clients.remove(3)); // It disconnects.
        clients[0].send(Message::from("still here")).expect("sent");
        for client in [0, 3] {
            let said = clients[client].read().expect("a message");
            assert_eq!(said.into_text().expect("text"), "still here", "{server}");
        }
    });
}

#[test]
fn requests_that_are_no_websocket_get_the_same_response() {
    let _dog = testing::watchdog("requests_that_are_no_websocket_get_the_same_response");
    let both = serve(apps::chat);
    let asks = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let with = |connection: &str, lines: &str| {
        format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n{lines}\r\n").into_bytes()
    };
    let requests = [
        request("GET /", "", b""),
        request("GET /", asks, b""),
        with("close, upgrade", &asks.replace("websocket", "other")),
        with("close, upgrade", &asks.replace("13", "12")),
        with(
            "close, upgrade",
            asks.split_once("Sec-WebSocket-Key").expect("it has one").0,
        ),
        request("POST /", asks, b"body"),
        format!("GET / HTTP/1.0\r\nConnection: upgrade\r\n{asks}\r\n").into_bytes(),
    ];
    both.compare(&requests, |number, reply| {
        assert!((400..=426).contains(&reply.status), "{number}: {reply:?}");
    });
}

#[test]
fn plain_upgrades_by_hyper() {
    let _dog = testing::watchdog("plain_upgrades_by_hyper");
    let asks = "GET /repeat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: repeat\r\n\r\n";
    let said: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    everywhere(&serve(apps::chat), |server, address| {
        let mut stream = connect(address);
        let mut writer = stream.try_clone().expect("a second handle");
        let sent = [asks.as_bytes(), &said].concat(); // The first bytes follow the head at once.
        let sending = std::thread::spawn(move || writer.write_all(&sent));
        let mut received = Vec::new();
        receive_until(&mut stream, &mut received, &said[said.len() - 64..]);
        sending.join().expect("no panic").expect("sent");
        let head = received
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head")
            + 4;
        let text = String::from_utf8_lossy(&received[..head]).to_ascii_lowercase();
        assert!(text.starts_with("http/1.1 101 "), "{server}: {text}");
        assert_eq!(
            text.matches("connection: upgrade\r\n").count(),
            1,
            "{server}: {text}"
        );
        assert!(text.contains("\r\nupgrade: repeat\r\n"), "{server}: {text}");
        assert!(received[head..] == said, "{server}");
        stream.shutdown(Shutdown::Write).expect("shut down");
        receive_until(&mut stream, &mut received, b"bye");
        let mut rest = [0];
        assert_eq!(
            testing::read_some(&mut stream, &mut rest).expect("the end"),
            0,
            "{server}"
        );
    });
}

/// The connection goes on with HTTP.
#[test]
fn a_refused_upgrade_is_a_response() {
    let _dog = testing::watchdog("a_refused_upgrade_is_a_response");
    let asks = "GET /refuse HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let sent = [asks.as_bytes(), &request("GET /none", "", b"")].concat();
    everywhere(&serve(apps::chat), |server, address| {
        let replies = replies(&exchange(address, &sent), &[]);
        let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
        assert_eq!(statuses, [403, 404], "{server}");
        assert_eq!(replies[0].text(), "not you");
    });
    // h2c is no protocol that anybody offers.
    let both = serve(apps::basics);
    let h2c = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade, HTTP2-Settings\r\n\
               Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    for (driver, address) in &both.onrush {
        assert_eq!(
            client::ask(*address, h2c.as_bytes()).text(),
            "Hello, World!",
            "{driver}"
        );
    }
}

/// Counts down when an application's task ends, and says how its reading ended.
struct Counted {
    alive: Arc<AtomicUsize>,
    ends: mpsc::Sender<Result<(), ErrorKind>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Sends back what it reads, and waits until that is taken.
fn repeats(alive: Arc<AtomicUsize>, ends: mpsc::Sender<Result<(), ErrorKind>>) -> Router {
    let repeat = move |mut request: Request| {
        alive.fetch_add(1, Ordering::SeqCst);
        let counted = Counted {
            alive: alive.clone(),
            ends: ends.clone(),
        };
        let on_upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(on_upgrade.await.expect("an upgrade"));
            let mut piece = vec![0; 4096];
            let end = loop {
                match stream.read(&mut piece).await {
                    Ok(0) => break Ok(()),
                    Ok(n) => {
                        if let Err(error) = stream.write_all(&piece[..n]).await {
                            break Err(error.kind());
                        }
                    }
                    Err(error) => break Err(error.kind()),
                }
            };
            let _ = counted.ends.send(end);
        });
        let upgrade = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "repeat")];
        async move { (StatusCode::SWITCHING_PROTOCOLS, upgrade) }
    };
    Router::new().route("/", get(repeat))
}

/// A connection to [`repeats`] after the head of its 101.
fn begin(address: SocketAddr) -> TcpStream {
    let asks = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: repeat\r\n\r\n";
    let mut stream = connect(address);
    stream.write_all(asks).expect("sent");
    receive_until(&mut stream, &mut Vec::new(), b"\r\n\r\n");
    stream
}

/// The application waits until the client reads, and the client goes: nothing of it remains.
#[test]
fn applications_end_with_clients_that_do_not_read() {
    let _dog = testing::watchdog("applications_end_with_clients_that_do_not_read");
    let alive = Arc::new(AtomicUsize::new(0));
    let (ends, ended) = mpsc::channel();
    let app = {
        let alive = alive.clone();
        move || repeats(alive.clone(), ends.clone())
    };
    everywhere(&serve(app), |server, address| {
        let mut stream = begin(address);
        // More than all buffers on the way hold, until nothing more is taken.
        stream.set_nonblocking(true).expect("non-blocking");
        let mut full = 0;
        while full < 20 {
            let written = stream.write(&[b'x'; 65_536]).unwrap_or(0);
            full = if written > 0 { 0 } else { full + 1 };
            if written == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert_eq!(alive.load(Ordering::SeqCst), 1, "{server}");
        drop(stream);
        assert!(ended.recv().is_ok());
        while alive.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    });
}

/// The application has much to say after the client has ended its side, and the client is slow.
#[test]
fn what_follows_the_end_of_the_client_is_sent() {
    const ANSWER_BYTES: usize = 8 << 20;
    async fn answer(mut request: Request) -> impl IntoResponse {
        let on_upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(on_upgrade.await.expect("an upgrade"));
            let mut question = Vec::new();
            stream.read_to_end(&mut question).await.expect("a question");
            let answer = question.repeat(ANSWER_BYTES / question.len());
            let _ = stream.write_all(&answer).await; // The client says what it has received.
        });
        let upgrade = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "repeat")];
        (StatusCode::SWITCHING_PROTOCOLS, upgrade)
    }
    let _dog = testing::watchdog("what_follows_the_end_of_the_client_is_sent");
    let both = serve(|| Router::new().route("/", get(answer)));
    everywhere(&both, |server, address| {
        let mut stream = begin(address);
        stream.write_all(b"why?").expect("sent");
        stream.shutdown(Shutdown::Write).expect("shut down");
        // Until the buffers of the sockets are full.
        std::thread::sleep(Duration::from_millis(200));
        let (mut received, mut piece) = (0, vec![0; 1 << 16]);
        loop {
            match testing::read_some(&mut stream, &mut piece) {
                Ok(0) => break,
                Ok(n) => received += n,
                Err(error) => panic!("{server}: {error} after {received} bytes"),
            }
        }
        assert_eq!(received, ANSWER_BYTES, "{server}");
    });
}

/// A broken connection is not the end of a message.
#[test]
fn a_reset_is_an_error_of_the_application() {
    let _dog = testing::watchdog("a_reset_is_an_error_of_the_application");
    let (ends, ended) = mpsc::channel();
    let app = move || repeats(Arc::default(), ends.clone());
    everywhere(&serve(app), |server, address| {
        let mut stream = begin(address);
        // Unread bytes make the close a reset.
        stream.write_all(b"unread").expect("sent");
        while !matches!(stream.peek(&mut [0; 6]), Ok(1..)) {}
        drop(stream);
        assert_eq!(
            ended.recv(),
            Ok(Err(ErrorKind::ConnectionReset)),
            "{server}"
        );
    });
}
