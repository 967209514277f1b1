//! One client, which repeats its transfer until the process ends.

use crate::count::{Counters, Kind};
use rustix::net::{RecvFlags, recv};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

/// Pause after a failure. It prevents a busy loop against a server that refuses everything.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of one write. Small, because the kernel does not preempt a system call on every machine,
/// and the program that measures shares the core.
const WRITE_BYTES: usize = 64 * 1024;

/// Bytes that one system call discards at most, for the same reason.
const DISCARD_BYTES: usize = 256 * 1024;

/// Longest response head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Fields of a response head at most.
const FIELDS_MAX: usize = 64;

/// Requests of a pipeline that one write holds.
const PIPELINE_BATCH: usize = 64;

/// One client.
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) kind: Kind,
    /// Among the clients of its kind.
    pub(crate) number: u32,
    /// Length of each upload.
    pub(crate) upload_bytes: u64,
    pub(crate) counters: Arc<Counters>,
    /// Among all clients.
    pub(crate) place: usize,
}

impl Client {
    /// Connects and repeats the transfer. Reconnects after a failure.
    pub(crate) fn run(&self) {
        let mut buffer = vec![0; DISCARD_BYTES];
        loop {
            let Err(error) = self.session(&mut buffer);
            self.counters.fail(format!("{:?}: {error}", self.kind));
            thread::sleep(PAUSE);
        }
    }

    /// One connection, until it fails.
    fn session(&self, buffer: &mut [u8]) -> io::Result<std::convert::Infallible> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        loop {
            match self.kind {
                Kind::Upload => self.upload(&mut stream, buffer)?,
                Kind::Stream => self.download(&mut stream, "/stream", buffer)?,
                Kind::Download => self.download(&mut stream, "/large", buffer)?,
                Kind::Pipeline => self.pipeline(&mut stream, buffer)?,
            }
        }
    }

    fn add(&self, amount: u64) {
        self.counters.add(self.place, self.kind, amount);
    }

    /// Sends one body and receives the response.
    fn upload(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
        let (number, length) = (self.number, self.upload_bytes);
        let head = format!(
            "PUT /upload-{number} HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes())?;
        let mut left = length;
        while left > 0 {
            let size = usize::try_from(left).map_or(WRITE_BYTES, |left| left.min(WRITE_BYTES));
            let written = stream.write(&buffer[..size])? as u64;
            self.add(written);
            left -= written;
        }
        let response = Head::receive(stream, buffer)?;
        let length = response.length.unwrap_or(0);
        discard(
            stream,
            length.saturating_sub(response.surplus),
            buffer,
            |_| (),
        )
    }

    /// Receives the complete response to one GET. A response without `Content-Length` ends with
    /// the connection.
    fn download(&self, stream: &mut TcpStream, path: &str, buffer: &mut [u8]) -> io::Result<()> {
        stream.write_all(self.get(path).as_bytes())?;
        let response = Head::receive(stream, buffer)?;
        let left = response
            .length
            .map_or(u64::MAX, |length| length.saturating_sub(response.surplus));
        self.add(response.surplus);
        discard(stream, left, buffer, |count| self.add(count))
    }

    /// Sends requests without waiting. Counts responses by their length, which is always the same.
    fn pipeline(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
        let request = self.get("/small");
        stream.write_all(request.as_bytes())?;
        let first = Head::receive(stream, buffer)?;
        let length = first.length.ok_or_else(|| invalid("no Content-Length"))?;
        discard(stream, length.saturating_sub(first.surplus), buffer, |_| ())?;
        let response_bytes = first.head_bytes + length;
        self.add(1);
        let mut sender = stream.try_clone()?;
        let batch = request.repeat(PIPELINE_BATCH);
        thread::scope(|scope| {
            scope.spawn(move || while sender.write_all(batch.as_bytes()).is_ok() {});
            let mut partial = 0;
            let received = discard(stream, u64::MAX, buffer, |count| {
                partial += count;
                self.add(partial / response_bytes);
                partial %= response_bytes;
            });
            // The shutdown makes the sender fail and end.
            let _ = stream.shutdown(Shutdown::Both);
            received
        })
    }

    fn get(&self, path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address)
    }
}

/// The head of a successful response.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    head_bytes: u64,
    /// `Content-Length`, if there is one.
    length: Option<u64>,
    /// Bytes of content that were received with the head.
    surplus: u64,
}

impl Head {
    /// Receives the head of the next response, and the content that arrives with it. No further
    /// response may follow in the same bytes.
    fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Head> {
        let mut received = 0;
        loop {
            match stream.read(&mut buffer[received..HEAD_BYTES_MAX])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => received += count,
            }
            if let Some(head) = Head::parse(&buffer[..received])? {
                return Ok(head);
            }
        }
    }

    fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let head_bytes = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
            _ => return Err(invalid("not a response head")),
        };
        match response.code {
            Some(200..=299) => {}
            code => return Err(invalid(&format!("status {}", code.unwrap_or(0)))),
        }
        let mut fields = response.headers.iter();
        let field = fields.find(|field| field.name.eq_ignore_ascii_case("content-length"));
        let value = field.and_then(|field| str::from_utf8(field.value).ok());
        Ok(Some(Head {
            head_bytes: head_bytes as u64,
            length: value.and_then(|value| value.parse().ok()),
            surplus: (bytes.len() - head_bytes) as u64,
        }))
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

/// Receives `left` bytes without copying them out of the kernel. Passes the number of bytes of each
/// system call to `each`. `buffer` is not written to.
fn discard(
    stream: &TcpStream,
    mut left: u64,
    buffer: &mut [u8],
    mut each: impl FnMut(u64),
) -> io::Result<()> {
    while left > 0 {
        let size = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = match recv(stream, &mut buffer[..size], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((_, count)) => count as u64,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        each(count);
        left -= count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn client(address: SocketAddr, kind: Kind) -> Client {
        Client {
            address,
            kind,
            number: 0,
            upload_bytes: 200_000,
            counters: Arc::new(Counters::new(1)),
            place: 0,
        }
    }

    /// Accepts one connection and passes it to `serve`.
    fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        thread::spawn(move || serve(listener.accept().expect("a client").0));
        address
    }

    /// Receives one request with `body` bytes after its head.
    fn request(stream: &mut TcpStream, body: usize) {
        let (mut received, mut piece) = (Vec::new(), [0; 4096]);
        let end = |text: &[u8]| text.windows(4).position(|four| four == b"\r\n\r\n");
        while end(&received).is_none_or(|end| received.len() < end + 4 + body) {
            let count = stream.read(&mut piece).expect("a request");
            assert!(count > 0);
            received.extend_from_slice(&piece[..count]);
        }
    }

    fn total(client: &Client, name: &str) -> u64 {
        let snapshot = client.counters.snapshot(Duration::ZERO);
        snapshot[name].as_u64().expect("a number")
    }

    #[test]
    fn uploads_count_their_bytes_and_are_repeated() {
        let address = server(|mut stream| {
            for _ in 0..2 {
                request(&mut stream, 200_000);
                let response = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
                stream.write_all(response).expect("sent");
            }
        });
        let client = client(address, Kind::Upload);
        client
            .session(&mut vec![0; DISCARD_BYTES])
            .expect_err("the server closes");
        assert!(total(&client, "uploaded_bytes") >= 400_000);
    }

    #[test]
    fn downloads_count_the_content_only() {
        let address = server(|mut stream| {
            request(&mut stream, 0);
            let content = vec![b'x'; 100_000];
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
            stream
                .write_all(&[head.as_bytes(), &content].concat())
                .expect("sent");
        });
        let client = client(address, Kind::Download);
        client
            .session(&mut vec![0; DISCARD_BYTES])
            .expect_err("the server closes");
        assert_eq!(total(&client, "downloaded_bytes"), 100_000);
    }

    #[test]
    fn pipelined_responses_are_counted_by_their_length() {
        let address = server(|mut stream| {
            request(&mut stream, 0);
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
            stream.write_all(response).expect("sent");
            stream
                .read_exact(&mut [0; 1024])
                .expect("more requests at once");
            stream.write_all(&response.repeat(100)).expect("sent");
            // Unread bytes would make the kernel reset the connection.
            let _ = stream.shutdown(Shutdown::Write);
            while stream.read(&mut [0; 65536]).is_ok_and(|count| count > 0) {}
        });
        let client = client(address, Kind::Pipeline);
        client
            .session(&mut vec![0; DISCARD_BYTES])
            .expect_err("the server closes");
        assert_eq!(total(&client, "pipelined_requests"), 101);
    }

    #[test]
    fn only_success_is_a_response() {
        let refused = Head::parse(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n");
        assert_eq!(refused.expect_err("refused").to_string(), "status 405");
        assert!(Head::parse(b"SSH-2.0\r\n\r\n").is_err());
        assert_eq!(Head::parse(b"HTTP/1.1 200").expect("no error"), None);
        let head = Head::parse(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n5\r\n").expect("whole");
        assert_eq!(
            head,
            Some(Head {
                head_bytes: 25,
                length: None,
                surplus: 3
            })
        );
    }
}
