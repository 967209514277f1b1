//! Load by full handshakes: each client opens a TLS connection for each request, one after the
//! other. It runs as a separate process on the clients' core.
//!
//! wrk cannot do this: with `Connection: close` it resumes the last session of each connection, if
//! the server permits that. So wrk is the load of resumed handshakes. The clients here offer no
//! session. Each waits for the end of its connection, so that no data is lost.

use crate::{
    client::{Client, Protocol},
    clients::{self, Seen},
    probe,
    wrk::{Report, Running},
};
use std::{
    io::{self, Read},
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// The hidden first argument with which this program runs as the load.
pub(crate) const SUBCOMMAND: &str = "--handshakes";

/// Longest wait for data from the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The load on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of clients. Each has its own thread.
    pub(crate) clients: u32,
}

impl Shape {
    /// One of the requests.
    pub(crate) fn request(address: SocketAddr) -> String {
        format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
    }

    /// Starts the load on the server at `address` for `seconds`.
    pub(crate) fn start(self, address: SocketAddr, seconds: u64) -> Outcome<Running> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args([SUBCOMMAND, &address.to_string(), &seconds.to_string()]);
        command.arg(self.clients.to_string());
        Running::start(&command)
    }
}

/// Runs the load. The arguments are `ADDRESS SECONDS CLIENTS`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let [address, seconds, clients] = arguments else {
        return Err(format!("{SUBCOMMAND} is internal"));
    };
    let wrong = |what: &str| format!("{SUBCOMMAND}: not a number: {what}");
    let shape = Shape {
        clients: clients.parse().map_err(|_| wrong(clients))?,
    };
    let address = address.parse().map_err(|_| wrong(address))?;
    let seconds = seconds.parse().map_err(|_| wrong(seconds))?;
    let client = Client::new(Protocol::Https)?;
    let report = load(&client, shape, address, Duration::from_secs(seconds));
    println!("{}", report.line());
    Ok(())
}

/// Fails unless the server at `address` resumes the session of a client's first connection.
pub(crate) fn check_resumption(address: SocketAddr) -> Outcome {
    let client = Client::that_resumes()?;
    let request = Shape::request(address);
    request_once(&client, address, &request)?;
    match request_once(&client, address, &request)? {
        (_, true) => Ok(()),
        (_, false) => Err("it resumes no sessions".to_owned()),
    }
}

fn load(client: &Client, shape: Shape, address: SocketAddr, duration: Duration) -> Report {
    let end = Instant::now() + duration;
    clients::run(shape.clients, |_| repeat(client, address, end))
}

/// Runs one client until `end`.
fn repeat(client: &Client, address: SocketAddr, end: Instant) -> Seen {
    let request = Shape::request(address);
    let mut seen = Seen::default();
    let mut goes_on = true;
    while goes_on && Instant::now() < end {
        let begun = Instant::now();
        goes_on = match request_once(client, address, &request) {
            Ok((response, _)) => seen.count(begun, Ok(&response)),
            Err(error) => seen.count(begun, Err(error)),
        };
    }
    seen
}

/// Sends one request on a new connection and waits for the end of the connection. Returns the
/// response, and whether a session was resumed.
fn request_once(
    client: &Client,
    address: SocketAddr,
    request: &str,
) -> Outcome<(probe::Response, bool)> {
    let failed = |error: io::Error| error.to_string();
    let mut stream = client.connect(address).map_err(failed)?;
    let limit = stream.socket().set_read_timeout(Some(PATIENCE));
    limit.map_err(failed)?;
    stream.send(request.as_bytes()).map_err(failed)?;
    let response = probe::read_response(&mut stream, &mut Vec::new())?;
    // The response is complete. Some servers end connections without `close_notify`, which is an
    // error.
    while stream.read(&mut [0; 256]).is_ok_and(|len| len > 0) {}
    Ok((response, stream.is_resumed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Certificate, Setup};
    use rustls::{
        ServerConfig, ServerConnection, StreamOwned,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    };
    use std::{io::Write, net::TcpListener, sync::Arc, thread};

    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";

    /// An HTTPS server for one client at a time that sends this number of tickets. It ends with the
    /// process.
    fn server(tickets: usize) -> SocketAddr {
        let Certificate { chain, key } =
            Certificate::of(&Setup::of_repository()).expect("a certificate");
        let chain = vec![CertificateDer::from_pem_file(chain).expect("PEM")];
        let key = PrivateKeyDer::from_pem_file(key).expect("PEM");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a pair");
        config.send_tls13_tickets = tickets;
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let tls = ServerConnection::new(config.clone()).expect("a connection");
                let mut stream = StreamOwned::new(tls, socket);
                // The requests are short enough to arrive in one record.
                if stream.read(&mut [0; 1024]).is_ok() {
                    stream.write_all(RESPONSE).expect("sent");
                    stream.conn.send_close_notify();
                    stream.flush().expect("sent");
                }
            }
        });
        address
    }

    fn run(address: SocketAddr) -> Report {
        let client = Client::new(Protocol::Https).expect("a client");
        let shape = Shape { clients: 1 };
        load(&client, shape, address, Duration::from_millis(100))
    }

    #[test]
    fn each_request_has_its_own_connection() {
        let report = run(server(2));
        let failed = (report.read, report.status);
        assert!(report.requests >= 1.0 && failed == (0.0, 0.0), "{report:?}");
        assert_eq!(report.bytes, report.requests * RESPONSE.len() as f64);
    }

    #[test]
    fn a_server_without_tickets_resumes_nothing() {
        assert_eq!(check_resumption(server(2)), Ok(()));
        let reason = check_resumption(server(0)).expect_err("no tickets");
        assert_eq!(reason, "it resumes no sessions");
    }

    #[test]
    fn a_load_without_a_server_ends() {
        let port = testing::ReservedPort::new().expect("a port");
        let report = run(SocketAddr::from(([127, 0, 0, 1], port.number())));
        assert!(report.requests == 0.0 && report.read > 10.0, "{report:?}");
        assert!(main(&["x".to_owned()]).is_err());
    }
}
