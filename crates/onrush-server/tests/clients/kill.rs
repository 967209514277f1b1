//! `kill -9` during 32 uploads, and a restart: each object is the old one or the new one, an
//! acknowledged one is new, no partial object is visible, and no staged file stays.
//!
//! `TEST_KILL_ROUNDS` sets the number of rounds.

use crate::program::{Folder, Server, TIMEOUT, drivers, pattern};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::thread::sleep;
use std::time::Duration;

const UPLOADS: usize = 32;
const ROUNDS: usize = 10;

fn rounds() -> usize {
    let asked = std::env::var("TEST_KILL_ROUNDS").ok();
    asked
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(ROUNDS)
}

/// The content of a key in a round. Lengths differ, and so do all bytes.
fn content(key: usize, round: usize) -> Vec<u8> {
    let seed = (key * 1000 + round) as u64;
    let bytes = 1 + (key * 7919 + round * 104_729) % 97 * 40_000;
    pattern(seed, bytes)
}

fn name(key: usize) -> String {
    format!("folder-{}/{key}", key % 5)
}

/// Uploads and returns whether the server acknowledged it. The server may be killed meanwhile.
fn put(address: SocketAddr, key: usize, content: &[u8]) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (name, length) = (name(key), content.len());
    let head =
        format!("PUT /{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(content)?;
    let mut response = [0; 12];
    stream.read_exact(&mut response)?;
    assert!(
        response.starts_with(b"HTTP/1.1 20"),
        "{}",
        String::from_utf8_lossy(&response)
    );
    Ok(true)
}

/// The number of files below a folder.
fn files(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let count = |entry: fs::DirEntry| match entry.file_type().expect("known").is_dir() {
        true => files(&entry.path()),
        false => 1,
    };
    entries.map(|entry| count(entry.expect("readable"))).sum()
}

/// The body of a 200, or `None` for a 404.
fn get(server: &Server, key: usize) -> Option<Vec<u8>> {
    let mut stream = server.connect();
    let request = format!("GET /{} HTTP/1.0\r\n\r\n", name(key));
    stream.write_all(request.as_bytes()).expect("sent");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    let end = response
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head")
        + 4;
    match &response[9..12] {
        b"200" => Some(response[end..].to_vec()),
        b"404" => None,
        other => panic!("{}", String::from_utf8_lossy(other)),
    }
}

#[test]
#[ignore = "nightly"] // it restarts the server many times
fn kill_during_uploads_leaves_old_or_new_objects() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        // The round from which each key's object is.
        let mut now: [Option<usize>; UPLOADS] = [None; UPLOADS];
        let (mut acknowledged, mut replaced, mut kept, mut swept) = (0, 0, 0, 0);
        for round in 0..rounds() {
            let mut server = Server::start(folder.path(), &flags);
            let address = server.address();
            let start = Barrier::new(UPLOADS + 1);
            let acks: Vec<bool> = std::thread::scope(|scope| {
                let upload = |key: usize| {
                    let start = &start;
                    scope.spawn(move || {
                        let content = content(key, round);
                        start.wait();
                        put(address, key, &content).unwrap_or(false)
                    })
                };
                let threads: Vec<_> = (0..UPLOADS).map(upload).collect();
                start.wait();
                // From the beginning of the uploads to nearly their end.
                sleep(Duration::from_millis((5 + round * 37 % 200) as u64));
                server.signal("KILL");
                server.wait_for_exit(TIMEOUT);
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .collect()
            });
            drop(server);
            swept += files(&folder.path().join(".onrush/staging"));

            let server = Server::start(folder.path(), &flags);
            assert_eq!(
                files(&folder.path().join(".onrush/staging")),
                0,
                "{driver} {round}"
            );
            for key in 0..UPLOADS {
                let found = get(&server, key);
                let is_new = found
                    .as_ref()
                    .is_some_and(|found| *found == content(key, round));
                assert!(
                    is_new || !acks[key],
                    "{driver} {round}: {key} was acknowledged"
                );
                let old = now[key].map(|round| content(key, round));
                assert!(
                    is_new || found == old,
                    "{driver} {round}: {key} is neither old nor new"
                );
                (replaced, kept) = (replaced + usize::from(is_new), kept + usize::from(!is_new));
                now[key] = if is_new { Some(round) } else { now[key] };
            }
            acknowledged += acks.iter().filter(|&&ack| ack).count();
            let objects = now.iter().flatten().count();
            let own = files(&folder.path().join(".onrush"));
            assert_eq!(
                files(folder.path()) - own,
                objects,
                "{driver} {round}: other files"
            );
        }
        println!(
            "{driver}: {replaced} new ({acknowledged} acknowledged), {kept} old, \
             {swept} temporaries swept"
        );
        assert!(
            swept > 0 && kept > 0 && replaced > 0,
            "{driver}: no kill was during an upload"
        );
    }
}
