//! Watched folders in the real program: a drain ends the streams, rights apply, and nothing is left
//! when no client watches.

use crate::program::users::{UsersFile, login, request, start, users};
use crate::program::{Folder, Server, TIMEOUT, curl, drivers, is_installed, wait_until};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// A client that watches a folder, when changes are reported.
fn watch(server: &Server, path: &str) -> TcpStream {
    let mut client = server.connect();
    let head = format!("GET {path}?watch HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(head.as_bytes()).expect("sent");
    let mut text = Vec::new();
    let mut piece = [0; 1024];
    while !String::from_utf8_lossy(&text).contains("id: 0\n\n") {
        let read = testing::read_some(&mut client, &mut piece).expect("the server responds");
        assert!(read > 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&piece[..read]);
    }
    client
}

/// The rest of a stream, which the server ends.
fn read_to_end(client: &mut TcpStream) -> String {
    let (mut rest, mut piece) = (Vec::new(), [0; 1024]);
    while !rest.ends_with(b"0\r\n\r\n") {
        let read = testing::read_some(client, &mut piece).expect("the stream ends");
        assert!(read > 0, "an incomplete body");
        rest.extend_from_slice(&piece[..read]);
    }
    String::from_utf8(rest).expect("UTF-8")
}

/// The number of threads of a program that have this name.
fn threads(server: &Server, name: &str) -> usize {
    let folder = format!("/proc/{}/task", server.child.id());
    let tasks = std::fs::read_dir(folder).expect("the process runs");
    let is_named = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    tasks.flatten().filter(is_named).count()
}

/// What happens after the rights of a client have changed is not for its stream.
#[test]
fn streams_end_when_rights_change() {
    let (folder, files) = (Folder::new(), Folder::new());
    let (file, config) = (users(), files.file("onrush.toml", "public-read = true\n"));
    let config_path = config.to_str().expect("UTF-8");
    for driver in drivers() {
        std::fs::write(&config, "public-read = true\n").expect("written");
        let server = start(&folder, &file, driver, &["--config", config_path]);
        for (text, line) in [
            ("public-read = true\n", "users loaded"),
            ("public-read = false\n", "applied=public-read"),
        ] {
            let mut client = watch(&server, "/");
            std::fs::write(&config, text).expect("written");
            server.signal("HUP");
            server.logs(line);
            let name = format!("secret-{driver}-{}", text.len());
            folder.file(&name, "content");
            let rest = read_to_end(&mut client);
            assert!(!rest.contains(&name), "{line}: {rest}");
        }
    }
}

#[test]
fn a_shutdown_does_not_wait_for_streams() {
    let folder = Folder::new();
    for driver in drivers() {
        let arguments = [
            "--driver",
            driver,
            "--workers",
            "2",
            "--drain-timeout",
            "1h",
        ];
        let mut server = Server::start(folder.path(), &arguments);
        let mut clients: Vec<_> = (0..8).map(|_| watch(&server, "/")).collect();
        server.signal("TERM");
        for client in &mut clients {
            read_to_end(client);
        }
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    }
}

#[test]
fn nothing_is_left_when_no_client_watches() {
    let folder = Folder::new();
    folder.file("a/x", "");
    for driver in drivers() {
        let server = Server::start(folder.path(), &["--driver", driver]);
        assert_eq!(threads(&server, "onrush-watch"), 0);
        let clients = ["/", "/a/", "/a/"].map(|path| watch(&server, path));
        // A thread sets its name when it runs first.
        wait_until(|| threads(&server, "onrush-watch") == 1);
        drop(clients);
        wait_until(|| threads(&server, "onrush-watch") == 0);
        let _again = watch(&server, "/a/");
        wait_until(|| threads(&server, "onrush-watch") == 1);
    }
}

#[test]
fn only_who_may_list_may_watch() {
    let (folder, file) = (Folder::new(), UsersFile::new());
    folder.file("open/x", "");
    folder.file("shut/x", "");
    file.add("ann", &["/=read,list", "/shut=read"]);
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        assert_eq!(request(&server, "GET", "/open/?watch", "").0, 401);
        assert_eq!(
            request(&server, "HEAD", "/open/?watch", &login("ann")).0,
            200
        );
        assert_eq!(
            request(&server, "GET", "/shut/?watch", &login("ann")).0,
            403
        );
    }
}

#[test]
fn curl_shows_changes() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    folder.file("photos/x", "");
    for driver in drivers() {
        let arguments = ["--driver", driver, "--allow", "put"];
        let server = Server::start(folder.path(), &arguments);
        let url = format!("{}/photos/", server.url);
        let mut watching = Command::new("curl");
        watching
            .args(["-sSN", "--max-time", "60"])
            .arg(format!("{url}?watch"));
        let mut watching = watching.stdout(Stdio::piped()).spawn().expect("curl");
        let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        assert_eq!([line(), line(), line()], ["retry: 2000", "id: 0", ""]);
        let name = folder.file("new", "content");
        curl(&["-f", "-T", name.to_str().expect("UTF-8"), &url]);
        assert_eq!([line(), line()], ["id: 1", "event: created"]);
        let data = line();
        assert!(
            data.starts_with("data: {\"name\":\"new\",\"href\":\"/photos/new\""),
            "{data}"
        );
        let _ = watching.kill();
        let _ = watching.wait();
        std::fs::remove_file(folder.path().join("photos/new")).expect("removed");
    }
}

/// Watching keeps a connection, so a client cannot have all of them in this way.
#[test]
fn clients_that_watch_leave_connections_to_others() {
    let (folder, files) = (Folder::new(), Folder::new());
    for driver in drivers() {
        let config = files.file("onrush.toml", "connections-max = 16\n");
        let config = config.to_str().expect("UTF-8");
        let arguments = ["--config", config, "--driver", driver];
        let server = Server::start(folder.path(), &arguments);
        let begin = |connections: usize| {
            let connect = || {
                let mut client = server.connect();
                let head = b"GET /?watch HTTP/1.1\r\nHost: localhost\r\n\r\n";
                client.write_all(head).expect("sent");
                let mut status = [0; 12];
                client.read_exact(&mut status).expect("the server responds");
                (client, String::from_utf8_lossy(&status[9..]).into_owned())
            };
            let begun: Vec<_> = (0..connections).map(|_| connect()).collect();
            let served = begun.iter().filter(|(_, status)| status == "200");
            (served.count(), begun)
        };
        let (served, _watching) = begin(12);
        assert!((1..=8).contains(&served), "{served}");
        let url = format!("http://{}/", server.address());
        for _ in 0..20 {
            let status = curl(&["-o", "/dev/null", "-w", "%{http_code}", &url]);
            assert_eq!(status, "200");
        }
    }
}
