//! A small HTTP server library with one thread per connection, and a program that uses it. What
//! waits comes from the parent module: from `std`, or on coroutines from Onrush.

use super::{Shutdown, TcpListener, TcpStream, thread};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Limits: bytes per line, header fields per head, and the wait for the client.
const LINE_BYTES_MAX: u64 = 8 * 1024;
const FIELDS_MAX: usize = 100;
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The server discards up to this much of an unread body; with more it closes the connection.
const DRAIN_BYTES_MAX: u64 = 1 << 20;

/// An accept loop with one thread per connection.
struct Server {
    listener: TcpListener,
}

impl Server {
    fn bind(address: &str) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        Ok(Server { listener })
    }

    /// Calls `handler` for each request, on the thread of its connection.
    fn serve<H>(&self, handler: H) -> io::Result<()>
    where
        H: Fn(&mut Request) -> Response + Send + Sync + 'static,
    {
        let handler = Arc::new(handler);
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                thread::sleep(Duration::from_millis(10)); // Most likely EMFILE.
                continue;
            };
            let handler = handler.clone();
            thread::spawn(move || {
                // An error concerns this connection only.
                let _ = serve_connection(&stream, &*handler);
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }
}

/// Why there is no request.
enum Failure {
    /// The client closed the connection, or the connection failed.
    Gone,
    /// The request is refused with this status.
    Refused(u16),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::InvalidData => Failure::Refused(400),
            _ => Failure::Gone,
        }
    }
}

fn serve_connection(
    stream: &TcpStream,
    handler: &impl Fn(&mut Request) -> Response,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = BufWriter::new(stream.try_clone()?);
    loop {
        let (keep_alive, head_only, response) = match read_request(&mut reader, &mut writer) {
            Ok(mut request) => {
                let response = handler(&mut request);
                let is_drained = request.drain();
                (
                    request.keep_alive && is_drained,
                    request.method == "HEAD",
                    response,
                )
            }
            Err(Failure::Refused(status)) => (false, false, Response::new(status)),
            Err(Failure::Gone) => return Ok(()),
        };
        response.send(&mut writer, keep_alive, head_only)?;
        // Responses to pipelined requests are sent together.
        if reader.buffer().is_empty() || !keep_alive {
            writer.flush()?;
        }
        if !keep_alive {
            return Ok(());
        }
    }
}

/// A request. Reading from it reads the body.
struct Request<'c> {
    method: String,
    path: String,
    fields: Vec<(String, String)>,
    keep_alive: bool,
    body: Body<'c>,
}

impl Request<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        field(&self.fields, name)
    }

    /// Discards the rest of the body. Returns `false` if it is too long or cannot be read.
    fn drain(&mut self) -> bool {
        let left = &mut (&mut self.body).take(DRAIN_BYTES_MAX);
        io::copy(left, &mut io::sink()).is_ok_and(|drained| drained < DRAIN_BYTES_MAX)
    }
}

impl Read for Request<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.body.read(into)
    }
}

fn field<'f>(fields: &'f [(String, String)], name: &str) -> Option<&'f str> {
    let mut found = fields
        .iter()
        .filter(|field| field.0.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.as_str())
}

/// Reads one line and removes its line ending.
fn read_line(reader: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = Vec::new();
    reader.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => return Err(Failure::Gone),
        Some(b'\n') if line.pop() == Some(b'\r') => {}
        Some(_) if line.len() as u64 + 1 == LINE_BYTES_MAX => return Err(Failure::Refused(431)),
        Some(_) => return Err(Failure::Refused(400)),
    }
    String::from_utf8(line).map_err(|_| Failure::Refused(400))
}

fn read_request<'c>(
    reader: &'c mut BufReader<TcpStream>,
    writer: &mut impl Write,
) -> Result<Request<'c>, Failure> {
    let line = read_line(reader)?;
    let words: Vec<&str> = line.split(' ').collect();
    let [method, path, version] = words[..] else {
        return Err(Failure::Refused(400));
    };
    let minor = match version {
        "HTTP/1.1" => 1,
        "HTTP/1.0" => 0,
        _ => return Err(Failure::Refused(505)),
    };
    let mut fields = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or(Failure::Refused(400))?;
        let is_token = !name.is_empty() && !name.contains([' ', '\t']);
        if !is_token || fields.len() == FIELDS_MAX {
            return Err(Failure::Refused(if is_token { 431 } else { 400 }));
        }
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    let framing = framing(&fields, minor)?;
    if framing != Framing::Ended
        && field(&fields, "Expect").is_some_and(|what| what.eq_ignore_ascii_case("100-continue"))
    {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        writer.flush()?;
    }
    let connection = field(&fields, "Connection")
        .unwrap_or_default()
        .to_ascii_lowercase();
    Ok(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        keep_alive: match minor {
            1 => !connection.contains("close"),
            _ => connection.contains("keep-alive"),
        },
        fields,
        body: Body { reader, framing },
    })
}

/// What remains of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Ended,
    /// This many bytes.
    Length(u64),
    /// This many bytes of the current chunk, then its line ending and the next chunk.
    Chunk(u64),
    /// All of it: the size of the first chunk comes next.
    FirstChunk,
    /// Unknown: the framing is invalid, or the body is incomplete.
    Broken,
}

fn framing(fields: &[(String, String)], minor: u8) -> Result<Framing, Failure> {
    let named = |name: &str| {
        let name = name.to_owned();
        let mine = move |field: &&(String, String)| field.0.eq_ignore_ascii_case(&name);
        fields
            .iter()
            .filter(mine)
            .map(|(_, value)| value.as_str())
            .collect::<Vec<_>>()
    };
    match (
        &named("Content-Length")[..],
        &named("Transfer-Encoding")[..],
    ) {
        ([], []) => Ok(Framing::Ended),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            match length.parse() {
                Ok(0) => Ok(Framing::Ended),
                Ok(bytes) => Ok(Framing::Length(bytes)),
                Err(_) => Err(Failure::Refused(400)),
            }
        }
        ([], [coding]) if minor == 1 => match coding.eq_ignore_ascii_case("chunked") {
            true => Ok(Framing::FirstChunk),
            false => Err(Failure::Refused(501)),
        },
        _ => Err(Failure::Refused(400)),
    }
}

/// The body of a request, without its framing.
struct Body<'c> {
    reader: &'c mut BufReader<TcpStream>,
    framing: Framing,
}

impl Body<'_> {
    /// Reads up to the data of the next chunk, or up to the end of the trailers.
    fn next_chunk(&mut self) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.framing, Framing::Broken);
        if matches!(before, Framing::Chunk(_)) && !read_line(self.reader)?.is_empty() {
            return Err(Failure::Refused(400));
        }
        let line = read_line(self.reader)?;
        let size = line.split(';').next().unwrap_or_default();
        let is_hex = !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = u64::from_str_radix(size, 16).ok().filter(|_| is_hex);
        self.framing = match size.ok_or(Failure::Refused(400))? {
            0 => {
                while !read_line(self.reader)?.is_empty() {}
                Framing::Ended
            }
            size => Framing::Chunk(size),
        };
        Ok(())
    }
}

impl Read for Body<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if matches!(self.framing, Framing::FirstChunk | Framing::Chunk(0)) {
            self.next_chunk().map_err(|failure| match failure {
                Failure::Gone => io::Error::from(ErrorKind::UnexpectedEof),
                Failure::Refused(_) => ErrorKind::InvalidData.into(),
            })?;
        }
        let left = match self.framing {
            Framing::Length(left) | Framing::Chunk(left) => left,
            Framing::Broken => return Err(ErrorKind::InvalidData.into()),
            _ => return Ok(0),
        };
        let room = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut into[..room])?;
        if read == 0 && room > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let left = left - read as u64;
        self.framing = match self.framing {
            Framing::Length(_) if left == 0 => Framing::Ended,
            Framing::Length(_) => Framing::Length(left),
            _ => Framing::Chunk(left),
        };
        Ok(read)
    }
}

/// A response.
struct Response {
    status: u16,
    fields: Vec<(String, String)>,
    content: Vec<u8>,
}

impl Response {
    fn new(status: u16) -> Response {
        Response {
            status,
            fields: Vec::new(),
            content: Vec::new(),
        }
    }

    fn text(content: impl Into<Vec<u8>>) -> Response {
        let mut response = Response::new(200);
        response.content = content.into();
        response.with_field("Content-Type", "text/plain; charset=utf-8")
    }

    fn with_field(mut self, name: &str, value: &str) -> Response {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    fn send(&self, out: &mut impl Write, keep_alive: bool, head_only: bool) -> io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            501 => "Not Implemented",
            505 => "HTTP Version Not Supported",
            _ => "",
        };
        write!(out, "HTTP/1.1 {} {reason}\r\n", self.status)?;
        for (name, value) in &self.fields {
            write!(out, "{name}: {value}\r\n")?;
        }
        if !keep_alive {
            out.write_all(b"Connection: close\r\n")?;
        }
        write!(out, "Content-Length: {}\r\n\r\n", self.content.len())?;
        match head_only {
            true => Ok(()),
            false => out.write_all(&self.content),
        }
    }
}

/// The handler of the program.
fn response(request: &mut Request, count: &AtomicU64) -> Response {
    let method = request.method.clone();
    match (method.as_str(), request.path.as_str()) {
        ("GET" | "HEAD", "/") => Response::text("Hello, World!"),
        ("GET", "/slow") => {
            thread::sleep(Duration::from_millis(200));
            Response::text("It took its time.\n")
        }
        ("GET", "/count") => {
            let before = count.fetch_add(1, Ordering::Relaxed);
            Response::text(format!("{}\n", before + 1))
        }
        ("POST" | "PUT", "/echo") => {
            let mut content = Vec::new();
            match request.read_to_end(&mut content) {
                Ok(_) => {
                    let kind = request.field("Content-Type").map(str::to_owned);
                    let mut response = Response::new(200);
                    response.content = content;
                    response.with_field("Content-Type", &kind.unwrap_or("text/plain".to_owned()))
                }
                Err(_) => Response::new(400),
            }
        }
        ("GET" | "HEAD" | "POST" | "PUT", "/" | "/slow" | "/count" | "/echo") => Response::new(405),
        _ => Response::new(404),
    }
}

pub(super) fn program() -> io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let server = Server::bind(&format!("127.0.0.1:{port}"))?;
    let count = AtomicU64::new(0);
    server.serve(move |request| response(request, &count))
}
