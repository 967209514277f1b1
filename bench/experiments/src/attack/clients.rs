//! The attackers: clients that comply with TCP and use as many resources of a server as it permits.

use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};
use xtask::shell::Outcome;

/// The small object that every probe requests.
pub(super) const SMALL: &str = "/small";
const SMALL_BYTES: usize = 1024;
/// Larger than all socket buffers. The files are sparse.
const LARGE_BYTES: u64 = 64 << 20;
/// Bytes of a head, or of the beginning of an upload. An upload of more than 16 KiB has a file.
const HEAD_BYTES: usize = 30_000;
const UPLOAD_BYTES: usize = 20_000;
/// The receive buffer of a client that does not read.
const UNREAD_BUFFER_BYTES: usize = 4096;
/// Requests that one client pipelines.
const PIPELINE: usize = 4_000;
/// Path segments of a deep PUT: as many as the server permits, and as many as fit in 4 KB.
const DEPTH: usize = 63;
const DEPTH_REJECTED: usize = 2_000;
/// A slow client sends one byte in this time.
const SLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait of a client for the response to a deep PUT before it sends the next one.
const DEEP_WAIT_MAX: Duration = Duration::from_secs(10);

/// The behaviour of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attack {
    /// Send the beginning of a request head.
    PartialHeads,
    /// Send the beginning of an upload, then one byte per second.
    SlowPuts,
    /// Request one large file each, all different, and read nothing.
    DistinctFiles,
    /// Request the same large file, and read nothing.
    Unread,
    /// Pipeline requests, and read nothing.
    UnreadPipelines,
    /// Repeatedly PUT objects in many new folders.
    DeepPuts,
}

/// The progress of the attackers.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Connections that were opened; for [`Attack::DeepPuts`], requests that were sent.
    pub(super) made: AtomicU64,
}

/// Creates the files for an attack by `clients` clients in `folder`.
pub(super) fn prepare(attack: Attack, clients: usize, folder: &Path) -> Outcome {
    let make = || -> io::Result<()> {
        fs::write(folder.join(&SMALL[1..]), [b'x'; SMALL_BYTES])?;
        let files = match attack {
            Attack::DistinctFiles => clients,
            Attack::Unread => 1,
            _ => 0,
        };
        for number in 0..files {
            fs::File::create(folder.join(large(number)))?.set_len(LARGE_BYTES)?;
        }
        Ok(())
    };
    make().map_err(|error| format!("{}: {error}", folder.display()))
}

fn large(number: usize) -> String {
    format!("large-{number}")
}

/// Attacks until `ends` is set, then closes all connections. Sets `all_connected` when all clients
/// are connected.
pub(super) fn run(
    attack: Attack,
    clients: usize,
    address: SocketAddr,
    all_connected: &AtomicBool,
    ends: &AtomicBool,
    progress: &Progress,
) {
    if attack == Attack::DeepPuts {
        all_connected.store(true, Ordering::Release);
        return thread::scope(|scope| {
            for client in 0..clients {
                scope.spawn(move || put_deep(address, client, ends, progress));
            }
        });
    }
    let mut open = Vec::with_capacity(clients);
    for number in 0..clients {
        if ends.load(Ordering::Acquire) {
            break;
        }
        // A connection that the server resets at once is a part of the attack.
        if let Ok(stream) = begin(attack, number, address) {
            open.push(stream);
            progress.made.fetch_add(1, Ordering::Relaxed);
        }
    }
    all_connected.store(true, Ordering::Release);
    while !ends.load(Ordering::Acquire) {
        match attack {
            Attack::SlowPuts => send_slowly(&mut open, ends),
            Attack::UnreadPipelines => {
                for stream in &mut open {
                    let _ = stream.write(get(SMALL).as_bytes());
                }
                thread::sleep(Duration::from_millis(100));
            }
            _ => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Sends one byte of each upload, distributed over [`SLOW_INTERVAL`].
fn send_slowly(open: &mut [TcpStream], ends: &AtomicBool) {
    const PARTS: usize = 20;
    for part in open.chunks_mut((open.len() / PARTS).max(1)) {
        for stream in part {
            let _ = stream.write(b"x");
        }
        if ends.load(Ordering::Acquire) {
            return;
        }
        thread::sleep(SLOW_INTERVAL / PARTS as u32);
    }
    if open.is_empty() {
        thread::sleep(SLOW_INTERVAL / PARTS as u32);
    }
}

/// Connects one client and sends its first bytes, as far as the kernel accepts them.
fn begin(attack: Attack, number: usize, address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    let bytes = match attack {
        Attack::PartialHeads => partial_head(),
        Attack::SlowPuts => {
            let mut bytes = put(&format!("/slow-{number}"), 1 << 20).into_bytes();
            bytes.resize(bytes.len() + UPLOAD_BYTES, b'x');
            bytes
        }
        Attack::DistinctFiles => get(&format!("/{}", large(number))).into_bytes(),
        Attack::Unread => get(&format!("/{}", large(0))).into_bytes(),
        Attack::UnreadPipelines => get(SMALL).repeat(PIPELINE).into_bytes(),
        Attack::DeepPuts => Vec::new(),
    };
    if matches!(
        attack,
        Attack::DistinctFiles | Attack::Unread | Attack::UnreadPipelines
    ) {
        set_socket_recv_buffer_size(&stream, UNREAD_BUFFER_BYTES)?;
    }
    stream.set_nonblocking(true)?;
    match stream.write(&bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(stream),
    }
}

/// PUTs objects in new folders. Every tenth path is too deep.
fn put_deep(address: SocketAddr, client: usize, ends: &AtomicBool, progress: &Progress) {
    let mut number = 0_u64;
    while !ends.load(Ordering::Acquire) {
        number += 1;
        let depth = match number % 10 {
            0 => DEPTH_REJECTED,
            _ => DEPTH,
        };
        let path = format!("/{client}-{number}{}", "/x".repeat(depth - 1));
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        let _ = stream.set_read_timeout(Some(DEEP_WAIT_MAX));
        if stream.write_all(put(&path, 0).as_bytes()).is_ok() {
            let _ = stream.read(&mut [0; 1024]);
            progress.made.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The first [`HEAD_BYTES`] of a head.
fn partial_head() -> Vec<u8> {
    let mut head = b"GET / HTTP/1.1\r\nHost: localhost\r\n".to_vec();
    while head.len() + 4_000 < HEAD_BYTES {
        head.extend_from_slice(b"X: ");
        head.resize(head.len() + 3_900, b'x');
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"X: ");
    head.resize(HEAD_BYTES, b'x');
    head
}

pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// The head of a PUT of `bytes` bytes.
pub(super) fn put(path: &str, bytes: usize) -> String {
    format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_heads_have_the_given_length_and_no_end() {
        let head = partial_head();
        assert_eq!(head.len(), HEAD_BYTES);
        assert!(!head.windows(4).any(|bytes| bytes == b"\r\n\r\n"));
        let lines = head.split(|&byte| byte == b'\n');
        assert!(lines.into_iter().all(|line| line.len() < 4_100));
    }
}
