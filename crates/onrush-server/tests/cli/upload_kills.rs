//! `kill -9` while many clients upload: each client learns what has become of its upload, and the
//! next start leaves no file that no record names, nor counts an upload that is complete.

use crate::program::{Folder, Server, drivers, pattern, wait_until};
use base64::prelude::{BASE64_STANDARD, Engine};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const CLIENTS: usize = 16;
const TUS: &str = "Tus-Resumable: 1.0.0\r\n";

/// The last upload of a client.
#[derive(Clone, Debug, Default)]
struct Last {
    path: String,
    is_tus: bool,
    content: Vec<u8>,
    /// Empty before the server has said it.
    url: String,
    is_acknowledged: bool,
}

/// A request, and the response; `None` if the connection is lost.
fn exchange(address: SocketAddr, head: &str, body: &[u8]) -> Option<String> {
    let length = body.len();
    let request =
        format!("{head}Host: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .write_all(&[request.as_bytes(), body].concat())
        .ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok()?;
    let response = String::from_utf8_lossy(&response).into_owned();
    Some(response).filter(|response| !response.is_empty())
}

fn field<'r>(response: &'r str, name: &str) -> Option<&'r str> {
    let mut lines = response.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

impl Last {
    /// Begins the upload: the server knows its length, and has no byte or the first half.
    fn begin(&mut self, address: SocketAddr) -> Option<()> {
        let (path, length) = (&self.path, self.content.len());
        let response = match self.is_tus {
            true => exchange(
                address,
                &format!("POST {path} HTTP/1.1\r\n{TUS}Upload-Length: {length}\r\n"),
                b"",
            )?,
            false => exchange(
                address,
                &format!(
                    "PUT {path} HTTP/1.1\r\nUpload-Complete: ?0\r\nUpload-Length: {length}\r\n"
                ),
                &self.content[..length / 2],
            )?,
        };
        assert!(response.contains(" 201 "), "{response}");
        let location = field(&response, "Location").or(field(&response, "location"));
        let url = location.expect("a URL");
        self.url = url[url.find(path.as_str()).expect("the path")..].to_owned();
        Some(())
    }

    /// Sends what is missing from `at` on.
    fn send(&self, address: SocketAddr, at: usize) -> Option<String> {
        let url = &self.url;
        let fields = match self.is_tus {
            true => format!("{TUS}Content-Type: application/offset+octet-stream\r\n"),
            false => {
                "Upload-Complete: ?1\r\nContent-Type: application/partial-upload\r\n".to_owned()
            }
        };
        let head = format!("PATCH {url} HTTP/1.1\r\n{fields}Upload-Offset: {at}\r\n");
        exchange(address, &head, &self.content[at..])
    }

    /// The offset that the server says, and its whole response. `None`: it knows no such upload.
    fn offset(&self, server: &Server) -> Option<(usize, String)> {
        let fields = if self.is_tus { TUS } else { "" };
        let head = format!("HEAD {} HTTP/1.1\r\n{fields}", self.url);
        let response = exchange(server.address(), &head, b"").expect("a response");
        if response.starts_with("HTTP/1.1 404 ") {
            return None;
        }
        let offset = field(&response, "Upload-Offset").unwrap_or_else(|| panic!("{response}"));
        Some((offset.parse().expect("a number"), response))
    }

    /// After a kill: the upload is complete and its object is there, or it continues.
    fn continue_after_kill(&self, server: &Server, folder: &Folder) {
        if self.url.is_empty() {
            return; // The client does not know it, and begins again.
        }
        let has_object = || {
            let found = std::fs::read(folder.path().join(&self.path[1..]));
            found.is_ok_and(|found| found == self.content)
        };
        // It is unknown if it was complete and only the response is missing.
        let Some((offset, head)) = self.offset(server).filter(|_| !self.is_acknowledged) else {
            assert!(has_object(), "{self:?}");
            return;
        };
        let length = self.content.len();
        if offset == length && (self.is_tus || head.contains("Upload-Complete: ?1")) {
            assert!(has_object(), "{head}");
            let again = self.send(server.address(), length).expect("a response");
            let is_right = match self.is_tus {
                true => again.starts_with("HTTP/1.1 204 "),
                false => again.starts_with("HTTP/1.1 400 ") && again.contains("completed-upload"),
            };
            assert!(is_right, "{again}");
        } else {
            let sent = self.send(server.address(), offset).expect("a response");
            let status = sent.split(' ').nth(1);
            assert!(matches!(status, Some("200" | "201" | "204")), "{sent}");
        }
        assert!(has_object(), "{head}");
    }
}

/// Uploads until the server is killed.
fn upload(address: SocketAddr, client: usize, round: usize, is_over: &AtomicBool) -> Last {
    let mut last = Last::default();
    for number in 0.. {
        if is_over.load(Relaxed) {
            break;
        }
        last = Last {
            path: format!("/d/{client}"),
            is_tus: client.is_multiple_of(2),
            content: pattern(
                (round * 1000 + number) as u64,
                3000 + (client + number) * 7919 % 90_000,
            ),
            ..Last::default()
        };
        let uploaded = last.begin(address).and_then(|()| {
            let at = if last.is_tus {
                0
            } else {
                last.content.len() / 2
            };
            last.send(address, at)
        });
        match uploaded {
            Some(response) => {
                let status = response.split(' ').nth(1);
                assert!(matches!(status, Some("200" | "201" | "204")), "{response}");
                last.is_acknowledged = true;
            }
            None => break,
        }
    }
    last
}

/// The files of kept uploads: name and inode, as a record names them.
fn kept(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path().join(".onrush/uploads"));
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().expect("ASCII");
        Some(format!("{name}/{}", entry.metadata().ok()?.ino()))
    };
    entries.map_or(Vec::new(), |entries| entries.filter_map(of).collect())
}

/// What the records name.
fn named(folder: &Folder) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.path().join(".onrush/state/uploads")) else {
        return Vec::new();
    };
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let record = std::fs::read_to_string(entry.ok()?.path()).ok()?;
        let place = record.split_once("\"place\":\"")?.1.split_once('"')?.0;
        let place = BASE64_STANDARD.decode(place).expect("base64");
        let place = String::from_utf8(place).expect("text");
        let mut parts = place.split('/');
        Some(format!("{}/{}", parts.next()?, parts.next()?))
    };
    entries.filter_map(of).collect()
}

fn kill_under_load(rounds: usize) {
    for driver in drivers() {
        let folder = Folder::new();
        std::fs::create_dir(folder.path().join("d")).expect("a folder");
        let flags = ["--allow", "put", "--driver", driver];
        let mut server = Server::start(folder.path(), &flags);
        for round in 0..rounds {
            let (address, is_over) = (server.address(), AtomicBool::new(false));
            let lasts: Vec<Last> = thread::scope(|scope| {
                let begin = |client| {
                    let is_over = &is_over;
                    scope.spawn(move || upload(address, client, round, is_over))
                };
                let clients: Vec<_> = (0..CLIENTS).map(begin).collect();
                thread::sleep(Duration::from_millis(200 + (round as u64 * 7919) % 300));
                server.child.kill().expect("killed");
                server.child.wait().expect("ended");
                is_over.store(true, Relaxed);
                let join = |client: thread::ScopedJoinHandle<'_, Last>| client.join();
                clients.into_iter().map(join).map(Result::unwrap).collect()
            });
            server = Server::start(folder.path(), &flags);
            // Without any request.
            wait_until(|| {
                let named = named(&folder);
                kept(&folder).iter().all(|kept| named.contains(kept))
            });
            for last in &lasts {
                last.continue_after_kill(&server, &folder);
            }
        }
        // What the clients do not know of has expired one day later; nothing else is left.
        drop(server);
        let limits = [&flags[..], &["--unfinished-age", "1s"]].concat();
        let _server = Server::start(folder.path(), &limits);
        wait_until(|| kept(&folder).is_empty() && named(&folder).is_empty());
    }
}

#[test]
fn kill_9_under_load_leaves_nothing_that_no_record_names() {
    kill_under_load(2);
}

#[test]
#[ignore = "nightly"] // minutes
fn many_kills_under_load_leave_nothing_that_no_record_names() {
    kill_under_load(150);
}

/// A record that a kill has left of a completed upload takes no room from others, also when another
/// object has replaced that of the upload.
#[test]
fn a_record_of_a_completed_upload_counts_for_no_limit() {
    for driver in drivers() {
        let folder = Folder::new();
        let limits = ["--unfinished-count", "1", "--unfinished-size", "20000"];
        let flags = [&["--allow", "put", "--driver", driver][..], &limits[..]].concat();
        let mut last = Last {
            path: "/x".to_owned(),
            content: pattern(1, 9000),
            ..Last::default()
        };
        let server = Server::start(folder.path(), &flags);
        last.begin(server.address()).expect("begun");
        let records = folder.path().join(".onrush/state/uploads");
        let record = std::fs::read_dir(&records).expect("a folder").next();
        let record = record.expect("a record").expect("an entry").path();
        let left = std::fs::read(&record).expect("read");
        last.send(server.address(), 4500).expect("sent");
        drop(server);
        std::fs::write(&record, left).expect("written");
        for is_replaced in [false, true] {
            if is_replaced {
                folder.file("other", "other");
                std::fs::rename(folder.path().join("other"), folder.path().join("x"))
                    .expect("replaced");
            }
            let server = Server::start(folder.path(), &flags);
            let mut next = Last {
                path: "/y".to_owned(),
                is_tus: true,
                content: pattern(2, 9900),
                ..Last::default()
            };
            next.begin(server.address()).expect("begun");
            assert!(record.exists(), "{driver}");
            let sent = next.send(server.address(), 0).expect("sent");
            assert!(sent.starts_with("HTTP/1.1 204 "), "{sent}");
            if !is_replaced {
                let (offset, _) = last.offset(&server).expect("the upload");
                assert_eq!(offset, 9000);
            }
        }
    }
}
