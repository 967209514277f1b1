//! A server in the style of `std`: an accept loop, and a thread for each connection, which reads
//! lines and writes responses. `examples/ported/http.rs` is similar, with bodies. The parent
//! module imports the types, from `std` or from Onrush.

use super::{TcpListener, TcpStream, sleep, spawn};
use crate::backend::{self, HELLO, SLEEP, SLEPT};
use std::{
    cell::RefCell,
    io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write},
    net::SocketAddr,
    time::Duration,
};

/// The longest line of a head, in bytes, and the most lines.
const LINE_BYTES_MAX: u64 = 8 * 1024;
const LINES_MAX: usize = 100;

thread_local! {
    /// Idle connections to the backend.
    static IDLE: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn serve(address: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    for stream in listener.incoming() {
        match stream {
            // An error ends only this connection.
            Ok(stream) => drop(spawn(move || drop(connection(&stream, backend)))),
            // Most likely too many descriptors are open.
            Err(_) => sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

fn connection(stream: &TcpStream, backend: SocketAddr) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = BufWriter::new(stream.try_clone()?);
    while let Some((target, closes)) = request(&mut reader)? {
        let (status, content) = match target.as_str() {
            "/" => ("200 OK", HELLO.as_bytes().to_vec()),
            "/call" => match backend::call(&IDLE, || TcpStream::connect(backend)) {
                Ok(content) => ("200 OK", content),
                Err(_) => ("502 Bad Gateway", Vec::new()),
            },
            "/sleep" => {
                sleep(SLEEP);
                ("200 OK", SLEPT.as_bytes().to_vec())
            }
            _ => ("404 Not Found", Vec::new()),
        };
        let length = content.len();
        write!(
            writer,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\n\r\n"
        )?;
        writer.write_all(&content)?;
        writer.flush()?;
        if closes {
            break;
        }
    }
    Ok(())
}

/// The target of the next request, and whether it is the last one. `None` at the end of the
/// connection.
fn request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<(String, bool)>> {
    let wrong = || io::Error::from(ErrorKind::InvalidData);
    let mut line = String::new();
    let mut next = |line: &mut String| {
        line.clear();
        (&mut *reader).take(LINE_BYTES_MAX).read_line(line)
    };
    if next(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some("GET"), Some(target), Some(version)) = (words.next(), words.next(), words.next())
    else {
        return Err(wrong());
    };
    let (target, mut closes) = (target.to_owned(), version != "HTTP/1.1");
    for _ in 0..LINES_MAX {
        if next(&mut line)? == 0 || !line.ends_with('\n') {
            return Err(wrong());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return Ok(Some((target, closes)));
        };
        closes |=
            name.eq_ignore_ascii_case("Connection") && value.trim().eq_ignore_ascii_case("close");
    }
    Err(wrong())
}
