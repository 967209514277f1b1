//! SIGHUP: the configuration file is read again, what can change applies to the running server,
//! and the log says what needs a restart.

mod program;

use program::{Folder, Server, TIMEOUT, drivers, onrush};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

fn serve(folder: &Folder, config: &Path, arguments: &[&str]) -> Server {
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0"])
        .args(arguments);
    command.arg("--config").arg(config);
    Server::run(command)
}

/// Replaces the configuration and waits until it is in use.
fn reload(server: &Server, config: &Path, text: &str, line: &str) {
    std::fs::write(config, text).expect("written");
    server.signal("HUP");
    server.logs(line);
}

/// Sends a request for `/x` on a connection that stays open.
fn get(stream: &mut TcpStream, fields: &str) -> String {
    try_get(stream, fields).expect("a response")
}

fn try_get(stream: &mut TcpStream, fields: &str) -> std::io::Result<String> {
    let request = format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    while !response.ends_with(b"content") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => response.extend_from_slice(&piece[..read]),
        }
    }
    Ok(String::from_utf8(response).expect("text"))
}

/// Sends requests with pauses until the server closes the connection in one of them: the first wait
/// may begin before the worker has the new limit.
fn wait_for_close(stream: &mut TcpStream) {
    let end = Instant::now() + TIMEOUT;
    while try_get(stream, "").is_ok() {
        assert!(Instant::now() < end, "it stays open");
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("set");
        match stream.read(&mut [0; 100]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            closed => return assert_eq!(closed.unwrap_or(0), 0),
        }
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    }
}

#[test]
fn options_change_for_connections_that_are_open() {
    let folder = Folder::new();
    folder.file("x", "content");
    let config = folder.file("onrush.toml", "log-level = 'info'\n");
    for driver in drivers() {
        std::fs::write(&config, "log-level = 'info'\n").expect("written");
        let server = serve(
            &folder,
            &config,
            &["--driver", driver, "--access-log", "on"],
        );
        let mut open = server.connect();
        let origin = "Origin: https://app.example\r\nX-Forwarded-For: 192.0.2.7\r\n";
        assert!(!get(&mut open, origin).contains("Access-Control-Allow-Origin"));
        let foreign = b"GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        assert!(server.exchange(foreign).starts_with("HTTP/1.1 421"));
        let text = "cors = 'https://app.example'\nhost = 'a.example'\nlog-level = 'debug'\n\
                    trusted-proxy = '127.0.0.1'\nworkers = 3\n";
        reload(&server, &config, text, "configuration loaded");
        let response = get(&mut open, origin);
        let expected = "Access-Control-Allow-Origin: https://app.example";
        assert!(response.contains(expected), "{response}");
        assert!(server.exchange(foreign).starts_with("HTTP/1.1 200"));
        server.logs("peer=192.0.2.7 proxy=127.0.0.1");
        let log = server.logs("options=workers");
        assert!(log.contains("WARN these options need a restart"), "{log}");
    }
}

#[test]
fn time_limits_change() {
    let folder = Folder::new();
    folder.file("x", "content");
    let config = folder.file("onrush.toml", "idle-timeout = 'off'\n");
    for driver in drivers() {
        std::fs::write(&config, "idle-timeout = 'off'\n").expect("written");
        let server = serve(&folder, &config, &["--driver", driver, "--workers", "2"]);
        let mut open: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
        for stream in &mut open {
            get(stream, "");
        }
        reload(
            &server,
            &config,
            "idle-timeout = '100ms'\n",
            "applied=idle-timeout",
        );
        open.iter_mut().for_each(wait_for_close);
    }
}

#[test]
fn a_mistake_changes_nothing() {
    let folder = Folder::new();
    folder.file("x", "content");
    let config = folder.file("onrush.toml", "cors = 'https://app.example'\n");
    let server = serve(&folder, &config, &[]);
    let text = "cors = 'https://other.example'\nworkers = 'many'\n";
    reload(&server, &config, text, "the configuration in use remains");
    let log = server.log();
    assert!(log.contains("onrush.toml:2: workers: "), "{log}");
    let mut open = server.connect();
    let origin = "Origin: https://app.example\r\n";
    assert!(get(&mut open, origin).contains("Access-Control-Allow-Origin"));
    reload(
        &server,
        &config,
        "cors = 'https://other.example'\n",
        "applied=cors",
    );
    assert!(!get(&mut open, origin).contains("Access-Control-Allow-Origin"));
    // Flags take precedence over the file.
    let server = serve(&folder, &config, &["--cors", "https://app.example"]);
    reload(
        &server,
        &config,
        "cors = 'https://third.example'\n",
        "configuration loaded",
    );
    assert!(get(&mut server.connect(), origin).contains("Access-Control-Allow-Origin"));
}
