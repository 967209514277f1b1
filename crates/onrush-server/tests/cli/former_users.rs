//! Users who are removed, or lose a right, while one of their requests is in progress.

use crate::program::users::{UsersFile, login, request, start};
use crate::program::{Folder, Server, drivers, wait_until};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Replaces the users, and waits until the server has loaded them.
fn change(server: &Server, file: &UsersFile, edit: impl FnOnce(&UsersFile)) {
    let loaded = || server.log().matches("users loaded").count();
    let before = loaded();
    edit(file);
    server.signal("HUP");
    wait_until(|| loaded() > before);
}

fn set_rights(file: &UsersFile, name: &str, rights: &[&str]) {
    let rights: Vec<String> = rights
        .iter()
        .map(|text| format!("--rights={text}"))
        .collect();
    let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
    file.user("remove", name, &[], "");
    file.user("add", name, &rights, &format!("{name}-password\n"));
}

/// Begins a request with a body that is not complete. It has been permitted when the server says
/// 100.
fn begin(server: &Server, head: &str, fields: &str) -> TcpStream {
    let mut stream = server.connect();
    let head = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\n\
         {fields}\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let expected = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut interim = vec![0; expected.len()];
    stream
        .read_exact(&mut interim)
        .expect("an interim response");
    assert_eq!(interim, expected);
    stream
}

fn finish(mut stream: TcpStream, body: &str) -> (u16, String) {
    stream.write_all(body.as_bytes()).expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    let status = response.get(9..12).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{response:?}")), response)
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

#[test]
fn a_put_in_progress_needs_its_rights_at_the_end() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        folder.file("there", "old");
        for name in ["ann", "bob", "eve", "kim"] {
            file.add(name, &["all"]);
        }
        let server = start(&folder, &file, driver, &[]);
        let put = |name: &str, path: &str| {
            let fields = format!("Content-Length: 100000\r\n{}", login(name));
            let mut stream = begin(&server, &format!("PUT {path}"), &fields);
            stream.write_all(&[b'x'; 50_000]).expect("sent");
            stream
        };
        let (removed, reader, creator, same) = (
            put("ann", "/ann"),
            put("bob", "/bob"),
            put("eve", "/there"),
            put("kim", "/kim"),
        );
        change(&server, &file, |file| {
            file.user("remove", "ann", &[], "");
            let text = file.text();
            let narrow = |text: &str, name: &str, rights: &str| {
                let start = text.find(&format!("[users.{name}")).expect("the user");
                let (before, rest) = text.split_at(start);
                format!("{before}{}", rest.replacen("\"all\"", rights, 1))
            };
            let text = narrow(&text, "bob", "\"read\"");
            file.write(&narrow(&text, "eve", "\"read\", \"create\""));
        });
        let rest = "y".repeat(50_000);
        for (stream, status) in [(removed, 401), (reader, 403), (creator, 403), (same, 201)] {
            let (found, response) = finish(stream, &rest);
            assert_eq!(found, status, "{response}");
        }
        assert_eq!(names(&folder), ["kim", "there"]);
        let there = std::fs::read(folder.path().join("there")).expect("a file");
        assert_eq!(there, b"old");
    }
}

#[test]
fn a_lock_of_a_state_needs_its_right_when_its_body_has_arrived() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        file.add("ann", &["all"]);
        file.add("kim", &["all"]);
        let server = start(&folder, &file, driver, &["--terraform-state"]);
        let (one, rest) = ("{\"ID\":", "\"ann-1\"}");
        let fields = format!("Content-Length: 14\r\n{}", login("ann"));
        let mut stream = begin(&server, "LOCK /a.tfstate", &fields);
        stream.write_all(one.as_bytes()).expect("sent");
        change(&server, &file, |file| {
            file.user("remove", "ann", &[], "");
        });
        let (status, response) = finish(stream, rest);
        assert_eq!(status, 401, "{response}");
        // There is no lock.
        let put = request(&server, "PUT", "/a.tfstate", &login("kim"));
        assert_eq!(put.0, 201, "{}", put.1);
    }
}

#[test]
fn each_part_of_a_form_needs_its_rights() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        file.add("ann", &["all"]);
        let server = start(&folder, &file, driver, &[]);
        let part = |name: &str| {
            format!("--b\r\nContent-Disposition: form-data; filename=\"{name}\"\r\n\r\n{name}\r\n")
        };
        let (first, rest) = (part("a"), part("b") + &part("c") + "--b--\r\n");
        let length = first.len() + rest.len();
        let fields = format!(
            "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\n{}",
            login("ann")
        );
        let mut stream = begin(&server, "POST /", &fields);
        // The part ends with the boundary of the next one.
        let (next, rest) = rest.split_at(rest.find("\r\n").expect("a line"));
        stream.write_all(first.as_bytes()).expect("sent");
        stream.write_all(next.as_bytes()).expect("sent");
        wait_until(|| names(&folder) == ["a"]);
        change(&server, &file, |file| set_rights(file, "ann", &["read"]));
        let (status, response) = finish(stream, rest);
        assert_eq!(status, 401, "the password has another hash now: {response}");
        assert_eq!(names(&folder), ["a"]);
    }
}

#[test]
fn removed_users_lose_locks_and_unfinished_uploads() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        folder.file("a", "a");
        folder.file("b", "b");
        file.add("ann", &["all"]);
        file.add("bob", &["read,list,write"]);
        let server = start(&folder, &file, driver, &["--webdav"]);
        let lock = "<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/>\
                    </locktype></lockinfo>";
        let begin_upload = |name: &str| {
            let fields = "Tus-Resumable: 1.0.0\r\nUpload-Length: 9\r\nUpload-Metadata: filename \
                          dXA=\r\nContent-Length: 0\r\n";
            let fields = format!("{fields}{}", login(name));
            let (status, response) = request(&server, "POST", "/", &fields);
            assert_eq!(status, 201, "{response}");
            let (_, url) = response.split_once("\r\nLocation: ").expect("a URL");
            let url = url.split("\r\n").next().expect("a line");
            url[url.find("/up").expect("a path")..].to_owned()
        };
        for (name, path) in [("ann", "/a"), ("bob", "/b")] {
            let fields = format!("Content-Length: {}\r\n{}", lock.len(), login(name));
            let stream = begin(&server, &format!("LOCK {path}"), &fields);
            assert_eq!(finish(stream, lock).0, 200);
        }
        let urls = [begin_upload("ann"), begin_upload("bob")];
        let head = |name: &str, url: &str| {
            let fields = format!("Tus-Resumable: 1.0.0\r\n{}", login(name));
            request(&server, "HEAD", url, &fields).0
        };
        assert_eq!((head("ann", &urls[0]), head("bob", &urls[1])), (200, 200));
        let ann = file.text();
        change(&server, &file, |file| {
            file.user("remove", "ann", &[], "");
        });
        let records = || {
            let records = folder.path().join(".onrush/state/uploads");
            std::fs::read_dir(records).map_or(0, Iterator::count)
        };
        let put = |name: &str, path: &str| request(&server, "PUT", path, &login(name)).0;
        assert_eq!(put("bob", "/a"), 204);
        assert_eq!(put("bob", "/b"), 423, "the lock of another user stays");
        wait_until(|| records() == 1);
        // Another person of that name gets nothing.
        change(&server, &file, |file| file.write(&ann));
        assert_eq!((head("ann", &urls[0]), head("bob", &urls[1])), (404, 200));
        let url = begin_upload("ann");
        assert_eq!(head("ann", &url), 200);
        assert_eq!(put("ann", "/b"), 423);
    }
}
