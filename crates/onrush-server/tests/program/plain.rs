//! Requests without TLS to the addresses that the program prints, and what its metrics say.

use super::{Server, TIMEOUT};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// An address that the program printed after this word.
pub fn printed(server: &Server, word: &str) -> SocketAddr {
    let line = format!("{word} http://");
    let out = server.prints(&line);
    let (_, rest) = out.split_once(&line).expect("printed");
    let address = rest.split(['/', '\n']).next().expect("an address");
    address.parse().expect("an address")
}

/// The response to a request without TLS, up to the end of the connection.
pub fn plain(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    let written = stream.write_all(request.as_bytes());
    written.expect("the server reads");
    let mut response = Vec::new();
    let read = stream.read_to_end(&mut response);
    read.expect("the server responds and closes");
    String::from_utf8_lossy(&response).into_owned()
}

/// The response to a GET without TLS.
pub fn get(address: SocketAddr, target: &str, host: &str) -> String {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    plain(address, &request)
}

/// The number of handshakes with this outcome.
pub fn handshakes(server: &Server, outcome: &str) -> u64 {
    let metrics = get(printed(server, "admin"), "/-/metrics", "localhost");
    let label = format!("outcome=\"{outcome}\"");
    let samples = metrics
        .lines()
        .filter(|line| line.starts_with("onrush_tls_handshakes_total") && line.contains(&label));
    let values = samples.map(|line| line.rsplit_once(' ').expect("a value").1);
    values
        .map(|value| value.parse::<u64>().expect("a number"))
        .sum()
}
