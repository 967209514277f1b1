//! The program below a service manager: notifications, the watchdog, and inherited sockets.

use crate::program::{Folder, Server, TIMEOUT, both_drivers, onrush, output};
use crate::service_manager::{ServiceManager, activated, inheritable};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn serve(folder: &Folder, manager: &ServiceManager, arguments: &[&str]) -> Server {
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0"])
        .args(arguments);
    command.env("WATCHDOG_USEC", "400000");
    manager.manage(&mut command);
    Server::run(command)
}

#[test]
fn a_service_manager_is_notified() {
    let (folder, mut manager) = (Folder::new(), ServiceManager::new());
    let config = folder.file("config.toml", "idle-timeout = '10s'\n");
    let config = config.to_str().expect("a path");
    let mut server = serve(&folder, &manager, &["--config", config]);
    let message = manager.receives("READY=1");
    assert!(message.contains("STATUS=serving"), "{message}");
    assert!(server.get("/config.toml").starts_with("HTTP/1.1 200"));
    manager.receives("WATCHDOG=1");
    manager.receives("WATCHDOG=1");
    server.signal("HUP");
    let message = manager.receives("RELOADING=1");
    let time = message
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(
        time.is_some_and(|time| time.parse::<u64>().is_ok_and(|us| us > 0)),
        "{message}"
    );
    manager.receives("READY=1");
    server.logs("configuration loaded");
    server.signal("TERM");
    manager.receives("STOPPING=1");
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
}

#[test]
fn without_a_watchdog_there_are_no_further_messages() {
    let (folder, mut manager) = (Folder::new(), ServiceManager::new());
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    // The watchdog is for another process.
    command
        .env("WATCHDOG_USEC", "1000")
        .env("WATCHDOG_PID", "1");
    manager.manage(&mut command);
    let server = Server::run(command);
    assert!(manager.next().starts_with("READY=1"));
    server.signal("TERM");
    assert!(manager.next().starts_with("STOPPING=1"));
}

#[test]
fn a_socket_that_cannot_be_notified_is_a_warning() {
    let folder = Folder::new();
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    command.env("NOTIFY_SOCKET", folder.path().join("missing"));
    let server = Server::run(command);
    server.logs("the service manager was not notified");
    assert!(server.get("/").starts_with("HTTP/1.1 200"));
}

fn get(stream: &mut TcpStream) -> String {
    let request = "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream
        .write_all(request.as_bytes())
        .expect("the server reads");
    let mut response = Vec::new();
    while !response.ends_with(b"content") {
        let mut piece = [0; 1024];
        let read = testing::read_some(stream, &mut piece).expect("a response");
        assert!(read > 0, "{}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&piece[..read]);
    }
    String::from_utf8(response).expect("text")
}

fn connect(listener: &TcpListener) -> TcpStream {
    let address = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream
}

/// A connection from before the start is served; connections are spread evenly over the workers;
/// those from after the end wait for the next start.
#[test]
fn one_inherited_socket_serves_all_workers() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let mut early = connect(&listener);
        let start = || {
            let socket = inheritable(&listener);
            let mut command = activated(&[("http", &socket)]);
            command
                .arg(folder.path())
                .args(["--driver", driver, "--workers", "4"]);
            command.args(["--admin", "0", "--rebalance", "off"]);
            Server::run(command)
        };
        let mut server = start();
        assert_eq!(server.url, format!("http://{address}"));
        get(&mut early);
        let mut others: Vec<TcpStream> = (0..7).map(|_| connect(&listener)).collect();
        for stream in &mut others {
            get(stream);
        }
        let printed = server.prints("admin ");
        let admin = printed
            .lines()
            .find_map(|line| line.strip_prefix("admin http://"));
        let admin = admin
            .expect("an address")
            .trim_end_matches("/-/")
            .to_owned();
        let mut stream = TcpStream::connect(admin).expect("the admin server");
        let request = "GET /-/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sent");
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).expect("metrics");
        for worker in 0..4 {
            let line = format!("onrush_connections_open{{worker=\"{worker}\"}} 2");
            assert!(metrics.contains(&line), "{driver}: {metrics}");
        }
        drop((early, others));
        server.signal("TERM");
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        let mut late = connect(&listener);
        let _server = start();
        get(&mut late);
    }
}

#[test]
fn names_of_sockets_say_what_they_are_for() {
    let folder = Folder::new();
    folder.file("x", "content");
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (https, http, redirect) = (listen(), listen(), listen());
    let sockets = [&https, &http, &redirect].map(inheritable);
    let names = ["https", "http", "redirect"];
    let named: Vec<(&str, &_)> = names.into_iter().zip(&sockets).collect();
    let mut command = activated(&named);
    command.arg(folder.path()).arg("--tls-self-signed");
    let server = Server::run(command);
    let port = |listener: &TcpListener| listener.local_addr().expect("bound").port();
    assert_eq!(server.url, format!("https://127.0.0.1:{}", port(&https)));
    assert!(get(&mut connect(&http)).starts_with("HTTP/1.1 200"));
    let mut plain = connect(&redirect);
    let head = format!(
        "GET /x HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\r\n",
        80
    );
    plain.write_all(head.as_bytes()).expect("the server reads");
    let mut response = String::new();
    plain.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 308"), "{response}");
    let location = format!("https://localhost:{}/x", port(&https));
    assert!(response.contains(&location), "{response}");
}

#[test]
fn unusable_sockets_are_wrong_usage() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let socket = inheritable(&listener);
    let file = std::fs::File::open("/dev/null").expect("a file");
    let file = rustix::io::dup(file).expect("a descriptor");
    for (name, socket, expected) in [
        ("https", &socket, "the socket https needs HTTPS"),
        ("http", &file, "is not a listening stream socket"),
    ] {
        let mut command = activated(&[(name, socket)]);
        let ended = output(command.arg(folder.path()));
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    // The sockets are for another process.
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    drop(Server::run(command));
}
