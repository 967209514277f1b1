//! A server that responds with given bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Sends the bytes and closes.
    Send(String),
    /// The same, after this time.
    Delayed(Duration, String),
    /// Closes without a response.
    Close,
    /// Never responds.
    Silence,
}

/// Responds to requests in turn; the last reply is repeated.
pub struct Canned {
    /// Where it listens.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

type Choose = dyn Fn(usize, &str) -> Reply + Send + Sync;

impl Canned {
    /// Gives these replies.
    ///
    /// # Panics
    /// As [`Canned::choosing`].
    pub fn new(replies: Vec<Reply>) -> Canned {
        Canned::choosing(move |number, _| replies[number.min(replies.len() - 1)].clone())
    }

    /// Chooses the reply by the number of the request, from 0, and its head.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn choosing(choose: impl Fn(usize, &str) -> Reply + Send + Sync + 'static) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, choose): (_, Arc<Choose>) = (requests.clone(), Arc::new(choose));
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (seen, choose) = (seen.clone(), choose.clone());
                let Ok(stream) = stream else {
                    return;
                };
                thread::spawn(move || respond(stream, &|head| choose(number, head), &seen));
            }
        });
        Canned { address, requests }
    }

    /// The heads of the requests so far.
    ///
    /// # Panics
    /// If another thread has panicked here.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn respond(mut stream: TcpStream, choose: &dyn Fn(&str) -> Reply, seen: &Mutex<Vec<String>>) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let reply = choose(&head);
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
    seen.lock().expect("no panic").push(head);
    let mut body = Vec::new();
    if (&mut stream)
        .take(length.unwrap_or(0))
        .read_to_end(&mut body)
        .is_err()
    {
        return;
    }
    match reply {
        Reply::Send(bytes) => drop(stream.write_all(bytes.as_bytes())),
        Reply::Delayed(time, bytes) => {
            thread::sleep(time);
            drop(stream.write_all(bytes.as_bytes()));
        }
        Reply::Close => {}
        Reply::Silence => thread::sleep(Duration::from_secs(60)),
    }
}

/// A response without a body: the status line after the version, and perhaps more fields.
pub fn status(line: &str) -> String {
    format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// The properties of an object with the tag `x`.
pub const FOUND: &str = "200 OK\r\nETag: \"x\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
