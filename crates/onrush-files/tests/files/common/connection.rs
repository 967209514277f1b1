//! The client's end of a connection, to a real server or in the simulator. Tests write requests of
//! HTTP/1.1 and read such responses; in the tests over HTTP/2, a gateway is between.

use super::over_http2;
use onrush::sim::Simulation;
use onrush_rt::driver::sim::Client;
use rustix::net::sockopt::set_socket_linger;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;
use testing::gateway::Gateway;

/// Steps of the simulator without progress after which a client gives up.
const STEPS_MAX: usize = 200_000;

/// The same while it sends: a server may never read what is left.
const REFUSED_MAX: usize = 100;

/// After so many steps without bytes none are on their way. The simulated network delays some.
const QUIET_STEPS: usize = 20;

/// A connection.
pub struct Connection {
    link: Link,
    gateway: Option<Box<Gateway>>,
}

/// What carries the bytes.
enum Link {
    Real(TcpStream),
    Sim(Client),
}

impl Connection {
    pub fn real(stream: TcpStream) -> Connection {
        Connection::on(Link::Real(stream))
    }

    pub fn simulated(client: Client) -> Connection {
        Connection::on(Link::Sim(client))
    }

    fn on(link: Link) -> Connection {
        let gateway = over_http2().then(Box::default);
        Connection { link, gateway }
    }

    /// Sends as much of `bytes` as possible. `sim` is the simulator that it belongs to, if any.
    pub fn send(&mut self, mut sim: Option<&mut Simulation>, bytes: &[u8]) {
        let Some(gateway) = &mut self.gateway else {
            return self.link.write(sim, bytes);
        };
        gateway.send(bytes);
        let mut refused = 0;
        loop {
            self.link.write(sim.as_deref_mut(), &gateway.take_out());
            if !gateway.is_blocked() || refused == REFUSED_MAX {
                return;
            }
            let Some(received) = self.link.read(sim.as_deref_mut()) else {
                return;
            };
            refused = if received.is_empty() { refused + 1 } else { 0 };
            gateway.receive(&received);
        }
    }

    /// Ends the last request in HTTP/2, although its content is shorter than announced.
    ///
    /// # Panics
    /// If it is HTTP/1.1.
    pub fn end_early(&mut self, sim: Option<&mut Simulation>) {
        let gateway = self.gateway.as_mut().expect("HTTP/2");
        gateway.end_early();
        self.link.write(sim, &gateway.take_out());
    }

    /// Receives until the bytes are complete, or up to the end of the connection.
    pub fn receive_until(
        &mut self,
        mut sim: Option<&mut Simulation>,
        is_complete: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..STEPS_MAX {
            if is_complete(&all) {
                break;
            }
            let Some(received) = self.receive_some(sim.as_deref_mut()) else {
                break;
            };
            all.extend(received);
        }
        all
    }

    /// Receives once, perhaps nothing. `None` is the end of the connection.
    pub fn receive_some(&mut self, mut sim: Option<&mut Simulation>) -> Option<Vec<u8>> {
        let Some(gateway) = &mut self.gateway else {
            return self.link.read(sim);
        };
        let received = gateway.take_received();
        if !received.is_empty() {
            return Some(received);
        }
        if gateway.is_over() {
            return None;
        }
        self.link.write(sim.as_deref_mut(), &gateway.take_out());
        gateway.receive(&self.link.read(sim)?);
        Some(gateway.take_received())
    }

    /// Whether another request may follow. Receives what is there.
    pub fn is_open(&mut self, sim: Option<&mut Simulation>) -> bool {
        let received = self.link.read_present(sim);
        match (&mut self.gateway, received) {
            (Some(gateway), Some(received)) => {
                gateway.receive(&received);
                gateway.is_open()
            }
            _ => false,
        }
    }

    /// Whether the server has ended the connection before it has seen the request.
    pub fn is_refused(&self) -> bool {
        let gateway = self.gateway.as_ref();
        gateway.is_some_and(|gateway| gateway.is_refused())
    }

    /// The connection for another request, if it is HTTP/2. The last one is over.
    pub fn reuse(mut self) -> Option<Connection> {
        self.gateway.as_mut()?.reuse();
        Some(self)
    }

    /// Resets the connection, as a client that crashes does. In HTTP/2 it resets the streams, and
    /// returns the connection, which stays open.
    pub fn abort(mut self, sim: Option<&mut Simulation>) -> Option<Connection> {
        match (&mut self.gateway, &self.link) {
            (Some(gateway), _) => {
                gateway.cancel();
                self.link.write(sim, &gateway.take_out());
                return Some(self);
            }
            (None, Link::Sim(client)) => client.reset(),
            (None, Link::Real(stream)) => {
                set_socket_linger(stream, Some(Duration::ZERO)).expect("an option");
            }
        }
        None
    }
}

impl Link {
    /// Writes as much as the other side takes.
    fn write(&mut self, sim: Option<&mut Simulation>, mut bytes: &[u8]) {
        match self {
            Link::Real(stream) => {
                let _ = stream.write_all(bytes);
            }
            Link::Sim(client) => {
                let sim = sim.expect("the simulator of the connection");
                let mut refused = 0;
                while !bytes.is_empty() && refused < REFUSED_MAX {
                    match client.send(bytes) {
                        Ok(sent) => (bytes, refused) = (&bytes[sent..], 0),
                        Err(_) => refused += 1,
                    }
                    sim.run();
                }
                sim.run();
            }
        }
    }

    /// Waits for bytes. In the simulator it waits one step, and there may be none. `None` is the
    /// end of the connection.
    fn read(&mut self, sim: Option<&mut Simulation>) -> Option<Vec<u8>> {
        match self {
            Link::Real(stream) => {
                let mut piece = vec![0; 64 * 1024];
                match testing::read_some(stream, &mut piece) {
                    Ok(0) => None,
                    Ok(bytes) => Some(piece[..bytes].to_vec()),
                    Err(error) => {
                        eprintln!("receiving ends: {error}");
                        None
                    }
                }
            }
            Link::Sim(client) => {
                sim.expect("the simulator of the connection").run();
                match client.receive() {
                    Ok(bytes) if bytes.is_empty() && client.at_end() => None,
                    Ok(bytes) => Some(bytes),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Vec::new()),
                    Err(_) => None,
                }
            }
        }
    }

    /// The bytes that are there. `None` is the end of the connection.
    fn read_present(&mut self, sim: Option<&mut Simulation>) -> Option<Vec<u8>> {
        let Link::Real(stream) = self else {
            let sim = sim.expect("the simulator of the connection");
            let (mut all, mut quiet) = (Vec::new(), 0);
            while quiet < QUIET_STEPS {
                let received = self.read(Some(sim))?;
                quiet = if received.is_empty() { quiet + 1 } else { 0 };
                all.extend(received);
            }
            return Some(all);
        };
        stream.set_nonblocking(true).expect("an option");
        let mut piece = vec![0; 64 * 1024];
        let read = testing::read_some(stream, &mut piece);
        stream.set_nonblocking(false).expect("an option");
        match read {
            Ok(0) => None,
            Ok(bytes) => Some(piece[..bytes].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Vec::new()),
            Err(_) => None,
        }
    }
}
