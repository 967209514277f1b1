//! Scripts: what a client sends and what it must receive, the same on every driver.

use super::{Served, mask_dates, statuses, text};
use onrush::{Limits, sim::Simulation};
use onrush_rt::driver::sim::Behaviour;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    /// Waits until the responses so far end with these bytes.
    Await(&'static [u8]),
}

/// The side that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client half-closes after its last byte.
    Client,
    /// The server ends it, although the client would continue.
    Server,
    /// As `Server`, and the client sees that the response is incomplete.
    Cut,
}

#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub steps: Vec<Step>,
    pub statuses: Vec<u16>,
    pub end: End,
    /// Whether everything is sent in one piece.
    pub whole: bool,
}

/// A script with one send.
pub fn script(sent: impl AsRef<[u8]>, statuses: &[u16], end: End) -> Script {
    let sent = sent.as_ref().to_vec();
    let shown = &sent[..sent.len().min(200)];
    Script {
        name: shown.escape_ascii().to_string(),
        steps: vec![Step::Send(sent)],
        statuses: statuses.to_vec(),
        end,
        whole: false,
    }
}

impl Script {
    /// Sends everything in one piece. Bytes after the announced last request must arrive together
    /// with it: otherwise the connection is reset, and the simulated network drops the response.
    pub fn whole(mut self) -> Script {
        self.whole = true;
        self
    }

    /// Then waits for `awaited` and sends `sent`.
    pub fn then(mut self, awaited: &'static [u8], sent: impl AsRef<[u8]>) -> Script {
        self.steps.push(Step::Await(awaited));
        self.steps.push(Step::Send(sent.as_ref().to_vec()));
        self
    }

    /// The responses on a simulated network with splits and delays by seed. Dates are masked.
    pub fn on_sim(&self, seed: u64, split: bool) -> String {
        let behaviour = Behaviour {
            pipe_bytes: if split { 1 << 14 } else { 1 << 20 },
            split,
            delay: split,
        };
        let limits = Limits::default();
        let mut sim = Simulation::builder(seed)
            .half_close(true)
            .limits(limits)
            .network(behaviour)
            .start(&super::app::app);
        let client = sim.connect();
        let mut responses = Vec::new();
        for step in &self.steps {
            match step {
                Step::Send(bytes) => {
                    let mut rest = &bytes[..];
                    for _ in 0..100_000 {
                        rest = &rest[client.send(rest).unwrap_or(rest.len())..];
                        sim.advance(Duration::from_millis(1));
                        responses.extend(client.receive().unwrap_or_default());
                        if rest.is_empty() {
                            break;
                        }
                    }
                }
                Step::Await(end) => {
                    for _ in 0..1000 {
                        if responses.ends_with(end) {
                            break;
                        }
                        sim.advance(Duration::from_millis(1));
                        responses.extend(client.receive().unwrap_or_default());
                    }
                    assert!(
                        responses.ends_with(end),
                        "{}: {}",
                        self.name,
                        text(&responses)
                    );
                }
            }
        }
        if self.end == End::Client {
            client.shutdown_write();
        }
        let mut cut = false;
        for _ in 0..1000 {
            match client.receive() {
                Ok(more) => responses.extend(more),
                Err(_) => cut = true,
            }
            if client.at_end() {
                break;
            }
            sim.advance(Duration::from_millis(1));
        }
        assert!(client.at_end(), "{}: {}", self.name, text(&responses));
        if self.end != End::Cut {
            // A simulated reset drops unreceived bytes, so they cannot be compared.
            self.check(&responses, cut);
        }
        drop(client);
        sim.run();
        assert_eq!(sim.open_connections(), 0, "{}", self.name);
        assert_eq!(sim.worker().live_tasks(), 0, "{}", self.name);
        mask_dates(&responses)
    }

    /// The responses of a real server. Dates are masked, and the sends are split at `cuts`.
    pub fn on_server(&self, server: &Served, cuts: &[usize]) -> String {
        let mut stream = server.connect();
        let (mut responses, mut refused) = (Vec::new(), false);
        // Otherwise a large send and a large response could wait for each other.
        let mut writer = stream.try_clone().expect("another handle");
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                Step::Send(bytes) if bytes.len() < 100_000 => {
                    let mut from = 0;
                    let cuts = cuts.iter().filter(|&&at| index == 0 && at < bytes.len());
                    for &at in cuts.chain([&bytes.len()]) {
                        if writer.write_all(&bytes[from..at]).is_err() {
                            refused = true; // Before everything was sent.
                            break;
                        }
                        from = at;
                    }
                }
                Step::Send(bytes) => {
                    let (bytes, mut writer) = (bytes.clone(), writer.try_clone().unwrap());
                    let done = std::thread::spawn(move || drop(writer.write_all(&bytes)));
                    if self.end == End::Client {
                        read_while(&mut stream, &mut responses, || !done.is_finished());
                    }
                }
                Step::Await(end) => {
                    let mut byte = [0];
                    while !responses.ends_with(end) {
                        stream.read_exact(&mut byte).expect("more");
                        responses.push(byte[0]);
                    }
                }
            }
        }
        if self.end == End::Client {
            let _ = writer.shutdown(Shutdown::Write);
        }
        let ended = stream.read_to_end(&mut responses);
        let cut = match ended {
            // A reset is reported once, perhaps to the last write.
            Ok(_) => refused && self.end == End::Cut,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
            Err(error) => panic!("{}: {error}: {}", self.name, text(&responses)),
        };
        self.check(&responses, cut);
        mask_dates(&responses)
    }

    fn check(&self, responses: &[u8], cut: bool) {
        let shown = &responses[..responses.len().min(2000)];
        let seen = (statuses(responses), cut);
        assert_eq!(
            seen,
            (self.statuses.clone(), self.end == End::Cut),
            "{}: {}",
            self.name,
            text(shown)
        );
    }
}

/// Reads while `wanted` is true.
fn read_while(stream: &mut TcpStream, responses: &mut Vec<u8>, wanted: impl Fn() -> bool) {
    let limit = stream.read_timeout().unwrap();
    let moment = std::time::Duration::from_millis(10);
    stream.set_read_timeout(Some(moment)).unwrap();
    let mut piece = [0; 65536];
    while wanted() {
        if let Ok(n) = testing::read_some(stream, &mut piece) {
            responses.extend_from_slice(&piece[..n]);
        }
    }
    stream.set_read_timeout(limit).unwrap();
}
