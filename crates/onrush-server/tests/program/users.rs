//! Users files and requests with credentials.

use super::{Folder, Server, onrush, output};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs a command of `onrush` with this text on stdin.
pub fn with_input(arguments: &[&str], input: &str) -> Output {
    let mut command = onrush();
    command.args(arguments).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that fails may end before it reads.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// A users file in a folder of its own.
pub struct UsersFile {
    pub _folder: Folder,
    pub path: PathBuf,
}

impl UsersFile {
    pub fn new() -> UsersFile {
        let folder = Folder::new();
        let path = folder.path().join("users.toml");
        UsersFile {
            _folder: folder,
            path,
        }
    }

    pub fn path(&self) -> &str {
        self.path.to_str().expect("UTF-8")
    }

    /// `onrush user COMMAND NAME --auth-file FILE …`, which must succeed. Returns its output.
    pub fn user(&self, command: &str, name: &str, more: &[&str], input: &str) -> String {
        let mut arguments = vec!["user", command, name, "--auth-file", self.path()];
        arguments.extend(more);
        let output = with_input(&arguments, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Adds a user whose password is the name and `-password`.
    pub fn add(&self, name: &str, rights: &[&str]) {
        let rights: Vec<String> = rights
            .iter()
            .map(|rights| format!("--rights={rights}"))
            .collect();
        let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
        self.user("add", name, &rights, &format!("{name}-password\n"));
    }

    /// The output of `onrush user list`.
    pub fn list(&self) -> String {
        let output = with_input(&["user", "list", "--auth-file", self.path()], "");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.path).expect("a file")
    }

    /// Replaces the text and keeps the mode.
    pub fn write(&self, text: &str) {
        std::fs::write(&self.path, text).expect("written");
    }
}

/// `onrush sign` with this file, which must succeed. Returns the URL.
pub fn sign(file: &UsersFile, path: &str, more: &[&str]) -> String {
    let mut command: Command = onrush();
    command
        .args(["sign", path, "--auth-file", file.path()])
        .args(more);
    let output = output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path} {more:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The field line for a password.
pub fn basic(name: &str, password: &str) -> String {
    use base64::Engine;
    let text = base64::prelude::BASE64_STANDARD.encode(format!("{name}:{password}"));
    format!("Authorization: Basic {text}\r\n")
}

/// The field line of a user of [`UsersFile::add`]; none for the empty name.
pub fn login(name: &str) -> String {
    match name {
        "" => String::new(),
        name => basic(name, &format!("{name}-password")),
    }
}

/// The status of a request with these field lines and a body of one byte for `PUT`, and the whole
/// response.
pub fn request(server: &Server, method: &str, target: &str, fields: &str) -> (u16, String) {
    let length = if method == "PUT" {
        "Content-Length: 1\r\n"
    } else {
        ""
    };
    let body = if method == "PUT" { "x" } else { "" };
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         {length}{fields}\r\n{body}"
    );
    let response = server.exchange(head.as_bytes());
    let status = response.get(9..12).and_then(|status| status.parse().ok());
    (
        status.unwrap_or_else(|| panic!("{method} {target}: {response:?}")),
        response,
    )
}

/// A folder with an object that some may read and one that others may not.
pub fn objects() -> Folder {
    let folder = Folder::new();
    folder.file("pub/open.txt", "open");
    folder.file("secret/key.txt", "classified");
    folder.file("ann/notes.txt", "notes");
    folder.file("in/old.txt", "old");
    folder
}

/// Users with rights at some paths of [`objects`].
pub fn users() -> UsersFile {
    let file = UsersFile::new();
    file.add("ann", &["read,list", "/ann=all", "/secret=none"]);
    file.add("bob", &["all"]);
    file.add("drop", &["/in=create"]);
    let anonymous = "\n[anonymous]\nrights = { '/pub' = ['read'] }\n";
    file.write(&(file.text() + anonymous));
    file
}

pub fn start(folder: &Folder, file: &UsersFile, driver: &str, more: &[&str]) -> Server {
    let mut arguments = vec!["--auth-file", file.path(), "--driver", driver];
    arguments.extend(more);
    Server::start(folder.path(), &arguments)
}
