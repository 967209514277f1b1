//! Other protocols on sockets, by both drivers, and for coroutines.

use super::router;
use crate::common::contract::contract;
use crate::common::{drivers, pattern, read_some, serve_plain, serve_with, watchdog};
use crate::upgrade::capitals;
use onrush::coroutine::handler;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use testing::http2::{Client, kind};

/// A client on a socket.
struct Real {
    stream: TcpStream,
    client: Client,
}

impl Real {
    fn new(stream: TcpStream) -> Real {
        let client = Client::with_settings(&[(4, 1 << 20)]);
        Real { stream, client }
    }

    /// Sends and receives until `is_done`.
    fn until(&mut self, is_done: impl Fn(&Client) -> bool) {
        let mut piece = vec![0; 1 << 16];
        loop {
            let out = self.client.take_out();
            self.stream.write_all(&out).expect("a server");
            if is_done(&self.client) {
                return;
            }
            let n = read_some(&mut self.stream, &mut piece).expect("no reset");
            assert!(n > 0, "the end: {:?}", self.client.goaways);
            self.client.receive(&piece[..n]);
        }
    }

    fn tunnel(&mut self, path: &str) -> u32 {
        let stream = self.client.connect("repeat", path, &[]);
        self.until(|client| client.answer(stream).status == 200);
        stream
    }

    /// Sends `bytes` as the windows allow, and returns when they have come back.
    fn exchange(&mut self, stream: u32, bytes: &[u8]) {
        let mut sent = 0;
        while sent < bytes.len() {
            // Nothing else is sent that windows count.
            let room = |client: &Client| {
                let of = |stream| client.room.get(&stream).copied().unwrap_or_default() as usize;
                65_535 + of(stream).min(of(0))
            };
            self.until(|client| room(client) > sent);
            let next = bytes.len().min(room(&self.client)).min(sent + 32_768);
            self.client.data(stream, &bytes[sent..next], false);
            sent = next;
        }
        self.until(|client| client.answer(stream).body.len() == bytes.len());
        assert!(self.client.answer(stream).body == bytes);
    }
}

#[test]
fn both_drivers_pass_a_megabyte_in_both_directions_beside_requests() {
    let _dog = watchdog("both_drivers_pass_a_megabyte_in_both_directions_beside_requests");
    let said = pattern(1 << 20);
    for driver in drivers() {
        let server = serve_with(driver, router(), |server| server.extended_connect(true));
        let mut real = Real::new(server.connect());
        real.client.grant(0, 100 << 20);
        let stream = real.tunnel("/late");
        let gets = [real.client.get("/big"), real.client.get("/late-big")];
        real.exchange(stream, &said);
        real.until(|client| gets.iter().all(|stream| client.answer(*stream).is_complete));
        for stream in gets {
            assert!(real.client.answer(stream).body == pattern(300_000));
        }
        real.client.data(stream, b"", true);
        real.until(Client::is_done);
        assert!(
            real.client.answer(stream).body.ends_with(b"bye"),
            "{driver:?}"
        );
    }
}

#[test]
fn both_drivers_drain_and_shut_down() {
    let _dog = watchdog("both_drivers_drain_and_shut_down");
    for driver in drivers() {
        let server = serve_with(driver, router(), |server| server.extended_connect(true));
        let mut real = Real::new(server.connect());
        let stream = real.tunnel("/repeat");
        server.running().handle().shutdown();
        real.client.data(stream, b"still here", false);
        real.until(|client| client.answer(stream).text() == "still here");
        real.client.data(stream, b"", true);
        real.until(Client::is_done);
        assert_eq!(real.client.answer(stream).text(), "still herebye");
        server.wait().expect("no worker failed");
        // One that goes on is cut at the timeout.
        let server = serve_with(driver, router(), |server| {
            server
                .extended_connect(true)
                .drain_timeout(Duration::from_millis(100))
        });
        let mut real = Real::new(server.connect());
        real.tunnel("/repeat");
        server.running().handle().shutdown();
        server.wait().expect("no worker failed");
        while matches!(read_some(&mut real.stream, &mut [0; 100]), Ok(1..)) {}
    }
}

/// The setting is off by default.
#[test]
fn a_server_offers_nothing_by_default() {
    let _dog = watchdog("a_server_offers_nothing_by_default");
    for driver in drivers() {
        let server = serve_plain(driver, router());
        let mut real = Real::new(server.connect());
        let stream = real.client.connect("repeat", "/repeat", &[]);
        real.until(|client| client.answer(stream).reset == Some(1));
        assert!(real.client.settings.iter().all(|(name, _)| *name != 8));
        let kinds = real.client.frames.iter().map(|frame| frame.0);
        assert_eq!(kinds.filter(|of| *of == kind::GOAWAY).count(), 0);
    }
}

#[test]
fn coroutines_read_and_write_the_other_protocol() {
    let _dog = watchdog("coroutines_read_and_write_the_other_protocol");
    for driver in drivers() {
        let handler = handler(contract(), capitals);
        let server = serve_with(driver, handler, |server| server.extended_connect(true));
        let mut real = Real::new(server.connect());
        let other = real.client.connect("repeat", "/", &[]);
        real.until(|client| client.answer(other).status == 426);
        let stream = real.client.connect("lines", "/", &[]);
        real.client.data(stream, b"one\ntwo\n", false);
        real.until(|client| client.answer(stream).text() == "ONE\nTWO\n");
        assert_eq!(real.client.answer(stream).status, 200);
        real.client.data(stream, b"\n", false);
        real.until(|client| client.answer(stream).is_complete);
        assert_eq!(
            real.client.answer(stream).text(),
            "ONE\nTWO\nbye",
            "{driver:?}"
        );
        // One whose client has gone ends.
        let stream = real.client.connect("lines", "/", &[]);
        real.until(|client| client.answer(stream).status == 200);
        real.client.reset(stream, 8);
        let last = real.client.connect("repeat", "/", &[]);
        real.until(|client| client.answer(last).status == 426);
    }
}
