//! SIGHUP: the configuration file is read again, and what can change applies to the running server.

use crate::program::certificates::{Authority, Client};
use crate::program::users::UsersFile;
use crate::program::{Folder, Server, TIMEOUT, both_drivers, onrush};
use std::io::{ErrorKind, Write};
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
        match testing::read_some(stream, &mut piece)? {
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
        match testing::read_some(stream, &mut [0; 100]) {
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
    for driver in both_drivers() {
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
                    trusted-proxy = '127.0.0.1'\n";
        reload(&server, &config, text, "configuration loaded");
        let response = get(&mut open, origin);
        let expected = "Access-Control-Allow-Origin: https://app.example";
        assert!(response.contains(expected), "{response}");
        assert!(server.exchange(foreign).starts_with("HTTP/1.1 200"));
        server.logs("peer=192.0.2.7 proxy=127.0.0.1");
    }
}

/// Users and WebDAV together let clients delete folders with everything in them.
#[test]
fn what_is_allowed_after_a_reload_is_in_the_log() {
    let (folder, outside, users) = (Folder::new(), Folder::new(), UsersFile::new());
    users.add("ann", &["all"]);
    let text = format!("auth-file = '{}'\n", users.path());
    let config = outside.file("onrush.toml", &text);
    let server = serve(&folder, &config, &[]);
    server.logs(" allowed=\"get, put, delete\" ");
    let text = text + "webdav = true\n";
    let line = " configuration loaded applied=webdav \
                allowed=\"get, put, delete, delete-folders\"";
    reload(&server, &config, &text, line);
}

#[test]
fn time_limits_change() {
    let folder = Folder::new();
    folder.file("x", "content");
    let config = folder.file("onrush.toml", "idle-timeout = 'off'\n");
    for driver in both_drivers() {
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

/// What a request shows of a configuration, and the texts of two configurations: only with the
/// second one, the response contains the last text.
struct Effect<'t> {
    before: String,
    after: String,
    request: &'t str,
    shown: &'t str,
}

impl Effect<'_> {
    /// The effect of options that the first configuration does not have.
    fn of<'t>(base: &str, added: &str, request: &'t str, shown: &'t str) -> Effect<'t> {
        Effect {
            before: base.to_owned(),
            after: format!("{base}\n{added}"),
            request,
            shown,
        }
    }

    fn is_shown(&self, server: &Server) -> bool {
        let (line, rest) = self.request.split_once('\n').unwrap_or((self.request, ""));
        let request = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}",
            rest.replace('\n', "\r\n")
        );
        let body_follows = request.contains("\r\n\r\n");
        let end = if body_follows { "" } else { "\r\n\r\n" };
        let request = request.trim_end_matches("\r\n").to_owned() + end;
        let response = server.exchange(request.as_bytes());
        assert!(response.starts_with("HTTP/1.1 "), "{response}");
        response.contains(self.shown)
    }
}

/// Each option applies to the running server, and so does its absence.
#[test]
fn each_option_of_a_request_changes_and_changes_back() {
    let folder = Folder::new();
    for (name, content) in [
        ("x", "content"),
        (".dot", "hidden"),
        ("index.html", "the top page"),
        ("f/index.html", "the index"),
        ("x.odd", "content"),
        ("p.txt", "content"),
        ("p.txt.gz", "compressed"),
    ] {
        folder.file(name, content);
    }
    folder.file("long.txt", "text ".repeat(10_000));
    let files = Folder::new();
    let redirects = files.file("redirects", "/old /x\n");
    let headers = files.file("headers", "/*\n  X-Test: yes\n");
    let (redirects, headers) = (redirects.display(), headers.display());
    let users = crate::program::users::users();
    let users = users.path();
    let put = "allow = 'put'";
    let auth = "auth = 'ann:correct horse battery'";
    let seven = |path: &str| format!("PUT {path}\nContent-Length: 7\n\ncontent");
    let (put_x, put_deep, put_q) = (seven("/x"), seven("/a/b"), seven("/q/x"));
    let put_new = seven("/new");
    let gzip = |path: &str| format!("GET {path}\nAccept-Encoding: gzip");
    let (gzip_p, gzip_long) = (gzip("/p.txt"), gzip("/long.txt"));
    let created = "POST /up\nTus-Resumable: 1.0.0\nUpload-Length: 7\nContent-Length: 0";
    let browse = "GET /nothing\nAccept: text/html\nSec-Fetch-Mode: navigate";
    let rules = (
        format!("redirects = '{redirects}'"),
        format!("headers = '{headers}'"),
    );
    let file = format!("auth-file = '{users}'");
    let mut effects = vec![
        Effect::of("", put, &put_x, "HTTP/1.1 204"),
        Effect::of(put, "hidden = true", "GET /.dot", "HTTP/1.1 200"),
        Effect::of("", "show = '.d*'", "GET /.dot", "HTTP/1.1 200"),
        Effect::of("", "site = true", "GET /f/", "the index"),
        Effect::of("", "webdav = true", "OPTIONS /x", "DAV: 1, 2"),
        Effect::of(
            "webdav = true",
            "webdav-infinity = 100",
            "PROPFIND /\nDepth: infinity",
            "/f/index.html</D:href>",
        ),
        Effect::of("site = true", "spa = true", browse, "the top page"),
        Effect::of("site = true", &rules.0, "GET /old", "Location: /x"),
        Effect::of("site = true", &rules.1, "GET /x", "X-Test: yes"),
        Effect::of(
            "",
            "precompressed = true",
            &gzip_p,
            "Content-Encoding: gzip",
        ),
        Effect::of(
            put,
            "terraform-state = true",
            "LOCK /a.tfstate\nContent-Length: 10\n\n{\"ID\":\"7\"}",
            "HTTP/1.1 200",
        ),
        Effect::of("", "compress = true", &gzip_long, "Content-Encoding: gzip"),
        Effect::of("", "sink = true", &put_x, "HTTP/1.1 204"),
        Effect::of("", "[types]\nodd = 'text/odd'", "GET /x.odd", "text/odd"),
        Effect::of(put, "depth-max = 1", &put_deep, "HTTP/1.1 400"),
        Effect::of(put, "body-max = 3", &put_x, "HTTP/1.1 413"),
        Effect::of(put, "max-object-size = 3", &put_x, "HTTP/1.1 413"),
        Effect::of(put, "min-free = '1000000GiB'", &put_x, "HTTP/1.1 507"),
        Effect::of(put, "quota = '/q=3'", &put_q, "HTTP/1.1 507"),
        Effect::of(put, "unfinished-age = '90s'", "OPTIONS /x", "max-age=90"),
        Effect::of(put, "unfinished-size = 3", created, "HTTP/1.1 507"),
        Effect::of("", auth, "GET /x", "HTTP/1.1 401"),
        Effect::of("", &file, "GET /x", "HTTP/1.1 401"),
        Effect::of(auth, "public-read = true", "GET /x", "HTTP/1.1 200"),
        Effect::of("", "upload-only = true", &put_new, "HTTP/1.1 201"),
    ];
    effects.push(Effect {
        before: format!("{put}\nunfinished-count = 0"),
        after: put.to_owned(),
        request: "OPTIONS /x",
        shown: "Tus-Version",
    });
    let config = files.file("onrush.toml", "");
    let server = serve(&folder, &config, &[]);
    let mut loaded = 0;
    let mut use_config = |text: &str| {
        std::fs::write(&config, text).expect("written");
        server.signal("HUP");
        loaded += 1;
        crate::program::wait_until(|| {
            server.log().matches("configuration loaded").count() == loaded
        });
    };
    for effect in &effects {
        let name = &effect.after;
        use_config(&effect.before);
        assert!(!effect.is_shown(&server), "before {name}");
        use_config(&effect.after);
        assert!(effect.is_shown(&server), "with {name}");
        use_config(&effect.before);
        assert!(!effect.is_shown(&server), "after {name}");
    }
    let log = server.log();
    assert!(
        !log.contains("ERROR") && !log.contains("need a restart"),
        "{log}"
    );
}

/// Objects that clients have put by a quota count for another one, and unfinished uploads stay.
/// Each name counts at least 4096 bytes.
#[test]
fn what_is_stored_outlives_a_reload() {
    let (folder, files) = (Folder::new(), Folder::new());
    let config = files.file("onrush.toml", "allow = 'put'\nquota = '/q=5000'\n");
    let server = serve(&folder, &config, &["--hidden"]);
    let put = |path: &str| {
        let request = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: 7\r\n\r\ncontent"
        );
        server.exchange(request.as_bytes())
    };
    assert!(put("/q/a").starts_with("HTTP/1.1 201"));
    assert!(put("/q/b").starts_with("HTTP/1.1 507"));
    let create = "POST /up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                  Tus-Resumable: 1.0.0\r\nUpload-Length: 7\r\nContent-Length: 0\r\n\r\n";
    let created = server.exchange(create.as_bytes());
    let location = created.split_once("ocation: ").expect("a location").1;
    let location = location.split_once("\r\n").expect("a line").0;
    let path = &location[location.find("/up").expect("the path")..];
    let text = "allow = 'put'\nquota = ['/q=9000', '/=17000']\nmax-object-size = 8\n";
    reload(&server, &config, text, "configuration loaded");
    assert!(put("/q/b").starts_with("HTTP/1.1 201"), "8192 of 9000");
    assert!(put("/q/c").starts_with("HTTP/1.1 507"), "12288 of 9000");
    let patch = format!(
        "PATCH {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTus-Resumable: 1.0.0\r\n\
         Content-Type: application/offset+octet-stream\r\nUpload-Offset: 0\r\n\
         Content-Length: 7\r\n\r\ncontent"
    );
    let patched = server.exchange(patch.as_bytes());
    assert!(patched.starts_with("HTTP/1.1 204"), "{patched}");
    assert!(server.get("/up").ends_with("content"));
    assert!(put("/c").starts_with("HTTP/1.1 507"), "20480 of 17000");
}

#[test]
fn settings_of_the_engine_change() {
    let folder = Folder::new();
    folder.file("x", "content");
    let config = folder.file("onrush.toml", "");
    for driver in both_drivers() {
        std::fs::write(&config, "").expect("written");
        let server = serve(&folder, &config, &["--driver", driver, "--workers", "1"]);
        let mut open = server.connect();
        get(&mut open, "");
        let text = "access-log = 'on'\nlog-format = 'json'\naccess-log-format = 'combined'\n";
        reload(&server, &config, text, "applied");
        server.logs("{\"timestamp\"");
        // The worker has the settings after the iteration in which this is served.
        get(&mut open, "");
        get(&mut open, "Referer: http://after.example/\r\n");
        let log = server.logs("\"http://after.example/\" \"-\"");
        assert!(log.contains("\"GET /x HTTP/1.1\" 200 7 "), "{log}");
        let text = text.replace("'on'", "'off'");
        reload(&server, &config, &text, "\"applied\":\"access-log\"");
        get(&mut open, "");
        get(&mut open, "Referer: http://off.example/\r\n");
        reload(&server, &config, "connections-max = 1\n", "connections-max");
        get(&mut open, "");
        // The new one replaces the one that is idle.
        assert!(server.get("/x").ends_with("content"));
        assert_eq!(
            testing::read_some(&mut open, &mut [0; 100]).expect("the end"),
            0
        );
        assert!(!server.log().contains("off.example"));
    }
}

/// Nothing of a configuration applies if a part of it cannot be used.
#[test]
fn mistakes_that_only_the_server_finds_change_nothing() {
    let folder = Folder::new();
    folder.file("x", "content");
    let files = Folder::new();
    let config = files.file("onrush.toml", "");
    let broken = files.file("broken", "not a rule at all\n");
    let server = serve(&folder, &config, &["--bind", "0.0.0.0"]);
    for (text, reason) in [
        ("allow = 'put'".to_owned(), "could make changes"),
        (
            format!("auth-file = '{}'", files.path().join("absent").display()),
            "absent",
        ),
        (
            format!("site = true\nredirects = '{}'", broken.display()),
            "--redirects",
        ),
    ] {
        let text = format!("cors = 'https://app.example'\n{text}\n");
        let before = server
            .log()
            .matches("the configuration in use remains")
            .count();
        std::fs::write(&config, text).expect("written");
        server.signal("HUP");
        let failures = || {
            server
                .log()
                .matches("the configuration in use remains")
                .count()
        };
        crate::program::wait_until(|| failures() > before);
        let log = server.log();
        assert!(
            log.lines().last().expect("a line").contains(reason),
            "{log}"
        );
        let response = get(&mut server.connect(), "Origin: https://app.example\r\n");
        assert!(
            !response.contains("Access-Control-Allow-Origin"),
            "{response}"
        );
    }
    let text = "cors = 'https://app.example'\n";
    reload(&server, &config, text, "applied=cors");
}

/// Certificates from other files.
#[test]
fn paths_of_certificates_change() {
    let folder = Folder::new();
    folder.file("x", "content");
    let files = Folder::new();
    let authority = Authority::new("authority");
    let settings = |name: &str| {
        let (certificate, key) = authority.issue(&["localhost"]).write(&files, name);
        format!("tls-cert = '{certificate}'\ntls-key = '{key}'\n")
    };
    let (first, second) = (settings("first"), settings("second"));
    let config = files.file("onrush.toml", &first);
    let server = serve(&folder, &config, &[]);
    let client = authority.client_config();
    let certificate = || {
        let client = Client::connect(&server, &client);
        client.expect("a handshake").certificate()
    };
    let before = certificate();
    reload(&server, &config, &second, "applied=\"tls-cert, tls-key\"");
    let after = certificate();
    assert_ne!(before, after);
    let text = "tls-cert = '/absent'\ntls-key = '/absent'\nhsts = 60\n";
    reload(&server, &config, text, "the configuration in use remains");
    assert_eq!(certificate(), after);
}
