//! HTTP/2 on the engine: a client without a socket, on the simulator.

// What ends: streams, connections, servers.
mod ends;
// Bodies in both directions, and windows.
mod flow;
// What logs and counters tell.
mod logged;
// The same responses as in HTTP/1.
mod responses;
// What streams of one connection share.
mod shared;
// Other protocols on streams.
mod tunnels;

use crate::common::app::app;
use crate::common::calm;
use onrush::sim::{Client as SimClient, Simulation};
use onrush::{Application, Limits};
use std::time::Duration;
use testing::http2::{Answer, Client};

/// A server and one connection to it.
struct Peer {
    sim: Simulation,
    connection: SimClient,
    client: Client,
}

impl Peer {
    fn new() -> Peer {
        Peer::on(calm(&app, Limits::default()))
    }

    fn of(application: &impl Application, limits: Limits) -> Peer {
        Peer::on(calm(application, limits))
    }

    fn on(sim: Simulation) -> Peer {
        let connection = sim.connect();
        Peer {
            sim,
            connection,
            client: Client::new(),
        }
    }

    /// Sends what the client wants to, and receives, until both have nothing more.
    fn run(&mut self) {
        loop {
            let out = self.client.take_out();
            self.sim.send(&self.connection, &out);
            self.sim.run();
            let received = self.connection.receive().expect("no reset");
            if received.is_empty() && self.client.out.is_empty() {
                return;
            }
            self.client.receive(&received);
        }
    }

    fn advance(&mut self, time: Duration) {
        self.run();
        self.sim.advance(time);
        self.run();
    }

    /// The answer to a GET.
    fn get(&mut self, path: &str) -> Answer {
        let stream = self.client.get(path);
        self.run();
        self.client.answer(stream).clone()
    }

    /// The answer to a POST with a body.
    fn post(&mut self, path: &str, body: &[u8]) -> Answer {
        let stream = self.client.request("POST", path, &[], false);
        self.client.data(stream, body, true);
        self.run();
        self.client.answer(stream).clone()
    }

    /// Whether the server has closed the connection.
    fn is_closed(&self) -> bool {
        self.connection.at_end()
    }

    /// The codes of the GOAWAYs.
    fn codes(&self) -> Vec<u32> {
        self.client.goaways.iter().map(|(_, code)| *code).collect()
    }
}
