//! `onrush health`: asks a running server whether it is ready. Containers and scripts use it, where
//! no other HTTP client is installed.

use super::parse;
use crate::options::units::Time;
use crate::options::values::AdminAt;
use crate::process::failure::{Failure, error_text, one_line};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Ask a running server whether it is ready
///
/// It requests /-/ready. The exit code is 0 if the server accepts requests and can reach its store.
/// Otherwise it is 1, and the reason is printed.
#[derive(Debug, Parser)]
#[command(name = "onrush health")]
struct Arguments {
    /// The port or address of --admin; with --admin same, an address that serves HTTP without TLS
    #[arg(value_name = "WHERE", env = "ONRUSH_ADMIN", hide_env = true)]
    admin: AdminAt,

    /// The maximum time to wait
    #[arg(long, value_name = "TIME", default_value = "5s")]
    timeout: Time,
}

/// The maximum size of a response of a server. Another program may send more.
const RESPONSE_BYTES_MAX: u64 = 16 << 10;

/// The definition of its command line.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// The command `onrush health`. `words` begin with `health`.
pub(crate) fn main(words: &[OsString]) -> Result<(), Failure> {
    let Some(arguments) = parse::parse::<Arguments>(words, "onrush health")? else {
        return Ok(());
    };
    let AdminAt::Own(address) = arguments.admin else {
        return Err(Failure::usage(
            "--admin same has no address of its own: write the address of the server, such as \
             onrush health 8080",
        ));
    };
    let response = ready(&address, arguments.timeout.duration());
    let response =
        response.map_err(|error| Failure::run(format!("{address}: {}", error_text(&error))))?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    let is_http = head.starts_with("HTTP/1.");
    let reason = one_line(body.trim_end());
    match (is_http, status) {
        (true, "200") => {
            println!("{reason}");
            Ok(())
        }
        (true, "404" | "401") => Err(Failure::run(format!(
            "{address}: {status} {reason}; is it the address of --admin?"
        ))),
        (true, status) => Err(Failure::run(format!("{address}: {status} {reason}"))),
        (false, _) => Err(Failure::run(format!("{address}: not an HTTP server"))),
    }
}

/// The response to `GET /-/ready`, whole. Fails at the latest after `time`.
fn ready(address: &str, time: Duration) -> io::Result<String> {
    let end = Instant::now() + time;
    let left = || {
        let left = end.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::Error::from(io::ErrorKind::TimedOut)),
            false => Ok(left),
        }
    };
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, left()?) {
            Ok(mut stream) => {
                stream.set_write_timeout(Some(left()?))?;
                let host = "Host: localhost\r\nConnection: close\r\n\r\n";
                stream.write_all(format!("GET /-/ready HTTP/1.1\r\n{host}").as_bytes())?;
                let mut response = Vec::new();
                let mut part = [0; 1024];
                while (response.len() as u64) < RESPONSE_BYTES_MAX {
                    stream.set_read_timeout(Some(left()?))?;
                    match stream.read(&mut part)? {
                        0 => break,
                        read => response.extend_from_slice(&part[..read]),
                    }
                }
                return Ok(String::from_utf8_lossy(&response).into_owned());
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
