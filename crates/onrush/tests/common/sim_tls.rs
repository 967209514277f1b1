//! TLS clients of a simulation.

use super::over_tls::{CONFIGS, client};
use onrush::sim::Simulation;
use onrush::tls::rustls::ClientConnection;
use onrush::{Application, Limits};
use onrush_rt::driver::sim::{Behaviour, Client};
use std::io::{Read, Write};

/// A simulation of one worker whose connections use TLS.
pub fn simulation(
    application: &impl Application,
    limits: Limits,
    behaviour: Behaviour,
) -> Simulation {
    Simulation::builder(1)
        .limits(limits)
        .network(behaviour)
        .tls(CONFIGS.0.clone())
        .start(application)
}

/// [`simulation`] with this receive memory and connection limit.
pub fn limited(
    application: &impl Application,
    limits: Limits,
    behaviour: Behaviour,
    receive_bytes_max: usize,
    connections_max: usize,
) -> Simulation {
    let tls = CONFIGS.0.clone();
    let (bytes, connections) = (receive_bytes_max, connections_max);
    Simulation::builder(1)
        .limits(limits)
        .network(behaviour)
        .receive_memory(bytes)
        .connections_max(connections)
        .tls(tls)
        .start(application)
}

/// A TLS client on the simulated network.
pub struct TlsClient {
    pub client: Client,
    pub tls: ClientConnection,
    /// Records that were not sent.
    pub records: Vec<u8>,
    /// Plaintext that was received.
    pub received: Vec<u8>,
    pub received_records: usize,
    pub received_close_notify: bool,
}

impl TlsClient {
    /// A client that has sent nothing.
    pub fn connect(sim: &Simulation) -> TlsClient {
        let mut tls = client();
        tls.set_buffer_limit(None);
        TlsClient {
            client: sim.connect(),
            tls,
            records: Vec::new(),
            received: Vec::new(),
            received_records: 0,
            received_close_notify: false,
        }
    }

    /// A client after its handshake.
    pub fn established(sim: &mut Simulation) -> TlsClient {
        let mut client = TlsClient::connect(sim);
        for _ in 0..100 {
            if !client.tls.is_handshaking() {
                break;
            }
            client.exchange(sim);
        }
        assert!(!client.tls.is_handshaking(), "the server does not respond");
        client.exchange(sim); // The client's last flight.
        client
    }

    /// Encrypts `bytes`, in one record if they fit.
    pub fn write(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
        self.take_records();
    }

    /// Adds what rustls wants to send to the records.
    pub fn take_records(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.records).unwrap();
        }
    }

    /// Sends all records, and receives what the server has sent.
    pub fn exchange(&mut self, sim: &mut Simulation) {
        self.take_records();
        let sent = sim.send(&self.client, &self.records);
        self.records.drain(..sent);
        sim.run();
        self.receive();
    }

    /// Decrypts what has arrived.
    pub fn receive(&mut self) {
        let received = self.client.receive().unwrap_or_default();
        let mut at = 0;
        while let Some(header) = received.get(at..at + 5) {
            at += 5 + usize::from(u16::from_be_bytes([header[3], header[4]]));
            self.received_records += 1;
        }
        let mut records = &received[..];
        while !records.is_empty() {
            self.tls.read_tls(&mut records).unwrap();
            let state = self.tls.process_new_packets().unwrap();
            self.received_close_notify |= state.peer_has_closed();
            let _ = self.tls.reader().read_to_end(&mut self.received);
        }
    }

    /// The response to one request.
    pub fn ask(&mut self, sim: &mut Simulation, request: &[u8]) -> Vec<u8> {
        self.write(request);
        for _ in 0..5 {
            self.exchange(sim);
        }
        std::mem::take(&mut self.received)
    }
}

/// The first bytes of a handshake.
pub fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    client().write_tls(&mut bytes).unwrap();
    bytes
}
