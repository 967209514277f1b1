//! Load by uploads: each client PUTs one object after the other over its own connection. It runs as
//! a separate process on the clients' core.
//!
//! wrk counts only the responses that arrive before the end, and of 32 uploads of 40 MB that may be
//! none. This load begins no upload after the end, but completes and counts those in progress.

use crate::{
    client::{Client, Protocol, Stream},
    clients::{self, Seen},
    probe,
    wrk::{Report, Running},
};
use std::{
    io::{self, Write},
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// The hidden first argument with which this program runs as the load.
pub const SUBCOMMAND: &str = "--upload";

/// The load on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of clients. Each has its own connection and thread.
    pub clients: u32,
    /// Length of each upload.
    pub body_bytes: u64,
    /// Whether each upload has a new name. Otherwise each client replaces its own object.
    pub fresh: bool,
    /// Whether each upload has a `Content-Type`, as those of browsers have.
    pub has_type: bool,
    /// Number of uploads of all clients together. `None`: as many as possible in the time.
    pub count: Option<u64>,
}

/// Longest wait for a response after the body is in the kernel's buffers. A server that divides a
/// tenth of a core evenly between 32 uploads reads the last megabytes of all of them at the end.
const PATIENCE: Duration = Duration::from_secs(60);

/// All names begin with this, which distinguishes the uploads from the server's own files.
pub(crate) const NAME_PREFIX: &str = "object-";

impl Shape {
    /// One of the requests, without its body.
    pub(crate) fn head(&self, address: SocketAddr, client: u32, number: u64) -> String {
        let number = if self.fresh { number } else { 0 };
        let kind = match self.has_type {
            true => "Content-Type: application/octet-stream\r\n",
            false => "",
        };
        format!(
            "PUT /{NAME_PREFIX}{client:02}-{number:07} HTTP/1.1\r\nHost: {address}\r\n\
             {kind}Content-Length: {}\r\n\r\n",
            self.body_bytes
        )
    }

    /// Starts the load on the server at `address` for `seconds`.
    pub fn start(&self, address: SocketAddr, seconds: u64) -> Outcome<Running> {
        self.start_over(Protocol::Http, address, seconds)
    }

    /// As [`Shape::start`], plain or with TLS.
    pub(crate) fn start_over(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        seconds: u64,
    ) -> Outcome<Running> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args([SUBCOMMAND, &address.to_string(), &seconds.to_string()]);
        command.args([
            self.clients.to_string(),
            self.body_bytes.to_string(),
            self.fresh.to_string(),
            self.has_type.to_string(),
            self.count.unwrap_or(0).to_string(),
            protocol.scheme().to_owned(),
        ]);
        Running::start(&command)
    }
}

/// Runs the load. The arguments are `ADDRESS SECONDS CLIENTS BYTES FRESH TYPE COUNT SCHEME`.
pub fn main(arguments: &[String]) -> Outcome {
    let [
        address,
        seconds,
        clients,
        body_bytes,
        fresh,
        has_type,
        count,
        scheme,
    ] = arguments
    else {
        return Err(format!("{SUBCOMMAND} is internal"));
    };
    let wrong = |what: &str| format!("{SUBCOMMAND}: not a number: {what}");
    let number = |text: &String| text.parse::<u64>().map_err(|_| wrong(text));
    let shape = Shape {
        clients: number(clients)? as u32,
        body_bytes: number(body_bytes)?,
        fresh: fresh == "true",
        has_type: has_type == "true",
        count: Some(number(count)?).filter(|&count| count > 0),
    };
    let address = address.parse().map_err(|_| wrong(address))?;
    let client = Client::new(match &**scheme {
        "https" => Protocol::Https,
        _ => Protocol::Http,
    })?;
    println!(
        "{}",
        load(&client, &shape, address, number(seconds)?).line()
    );
    Ok(())
}

fn load(client: &Client, shape: &Shape, address: SocketAddr, seconds: u64) -> Report {
    let body = vec![b'x'; shape.body_bytes as usize];
    let end = Instant::now() + Duration::from_secs(seconds);
    clients::run(shape.clients, |number| {
        upload_all(client, shape, address, number, &body, end)
    })
}

/// Runs one client until `end`, or until it has made its share of the uploads.
fn upload_all(
    client: &Client,
    shape: &Shape,
    address: SocketAddr,
    number_of_client: u32,
    body: &[u8],
    end: Instant,
) -> Seen {
    let clients = u64::from(shape.clients);
    let share =
        |count: u64| count / clients + u64::from(u64::from(number_of_client) < count % clients);
    let most = shape.count.map_or(u64::MAX, share);
    let mut seen = Seen::default();
    let mut connection = None;
    for number in 0..most {
        if shape.count.is_none() && Instant::now() >= end {
            break;
        }
        let head = shape.head(address, number_of_client, number);
        let begun = Instant::now();
        let response = upload(client, &mut connection, address, head.as_bytes(), body);
        let is_open = response.as_ref().is_ok_and(|response| !response.closes);
        let goes_on = seen.count(begun, response.as_ref().map_err(String::clone));
        if !is_open {
            connection = None;
        }
        if !goes_on {
            break;
        }
    }
    seen
}

fn upload(
    client: &Client,
    connection: &mut Option<Stream>,
    address: SocketAddr,
    head: &[u8],
    body: &[u8],
) -> Outcome<probe::Response> {
    let failed = |error: io::Error| error.to_string();
    let stream = match connection.take() {
        Some(open) => open,
        None => client.connect(address).map_err(failed)?,
    };
    let limit = stream.socket().set_read_timeout(Some(PATIENCE));
    limit.map_err(failed)?;
    let stream = connection.insert(stream);
    let sent = match body.len() {
        // In one segment, as clients do that have head and body in memory.
        0..=65_536 => stream.write_all(&[head, body].concat()),
        _ => stream.write_all(head).and_then(|()| stream.write_all(body)),
    };
    sent.map_err(failed)?;
    probe::read_response(stream, &mut Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, net::TcpListener, thread};

    /// A server that responds to `count` uploads of 3 bytes on one connection.
    fn sink(count: usize) -> (SocketAddr, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let server = thread::spawn(move || {
            let mut names = Vec::new();
            let (mut stream, _) = listener.accept().expect("a client");
            let mut received = Vec::new();
            while names.len() < count {
                let mut piece = [0; 512];
                let len = stream.read(&mut piece).expect("reads");
                received.extend_from_slice(&piece[..len]);
                let text = String::from_utf8_lossy(&received).into_owned();
                if text.ends_with("\r\n\r\nxxx") {
                    names.push(text.split(' ').nth(1).unwrap_or_default().to_owned());
                    received.clear();
                    let response = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";
                    stream.write_all(response.as_bytes()).expect("writes");
                }
            }
            names
        });
        (address, server)
    }

    #[test]
    fn the_requested_number_of_uploads_is_made() {
        let shape = Shape {
            clients: 1,
            body_bytes: 3,
            fresh: true,
            has_type: true,
            count: Some(3),
        };
        let (address, server) = sink(3);
        let client = Client::new(Protocol::Http).expect("no TLS");
        let report = load(&client, &shape, address, 0);
        assert_eq!(
            (report.requests, report.status, report.read),
            (3.0, 0.0, 0.0)
        );
        let names = server.join().expect("ends");
        assert_eq!(names[2], "/object-00-0000002");
        assert_eq!(Report::read(&report.line()).expect("whole").requests, 3.0);
    }

    #[test]
    fn the_load_ends_in_time_and_counts_failures() {
        let mut shape = Shape {
            clients: 2,
            body_bytes: 3,
            fresh: false,
            has_type: false,
            count: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let client = Client::new(Protocol::Http).expect("no TLS");
        assert_eq!(load(&client, &shape, address, 0).requests, 0.0);
        shape.count = Some(1);
        let port = testing::ReservedPort::new().expect("a port");
        let refused = SocketAddr::from(([127, 0, 0, 1], port.number()));
        assert_eq!(load(&client, &shape, refused, 0).read, 1.0);
        assert!(main(&["x".to_owned()]).is_err());
    }
}
