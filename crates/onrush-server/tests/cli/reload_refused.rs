//! SIGHUP: what does not apply, and what must not wait for anything else.

use crate::program::certificates::{Authority, Client};
use crate::program::plain::plain;
use crate::program::users::{login, request};
use crate::program::{Folder, Server, onrush, output};
use std::net::SocketAddr;
use std::process::Command;

const NEED_RESTART: &str = "these options need a restart, so the configuration in use remains";

/// Serves with a configuration file whose lines name all options but the port.
fn serve(config: &std::path::Path) -> Server {
    let mut command = onrush();
    command.args(["--port", "0", "--config"]).arg(config);
    Server::run(command)
}

/// Rights that are meant for another folder or address do not apply to the one in use.
#[test]
fn rights_do_not_apply_without_the_folder_that_they_are_for() {
    let (private, public, files) = (Folder::new(), Folder::new(), Folder::new());
    private.file("x", "secret");
    public.file("x", "content");
    let of = |folder: &Folder, more: &str| {
        let dir = folder.path().display();
        format!("dir = '{dir}'\nauth = 'ann:correct horse battery'\n{more}\n")
    };
    let config = files.file("onrush.toml", of(&private, ""));
    let server = serve(&config);
    assert_eq!(request(&server, "GET", "/x", "").0, 401);
    for (text, options) in [
        (of(&public, "public-read = true"), "dir"),
        (
            of(&private, "bind = '127.0.0.2'\npublic-read = true"),
            "bind",
        ),
        (
            of(&public, "public-read = true\nallow = 'put'\nworkers = 3"),
            "\"dir, workers\"",
        ),
    ] {
        std::fs::write(&config, &text).expect("written");
        server.signal("HUP");
        let log = server.logs(&format!("options={options}\n"));
        assert!(log.contains(&format!("ERROR {NEED_RESTART}")), "{log}");
        assert!(!log.contains("configuration loaded"), "{log}");
        assert_eq!(request(&server, "GET", "/x", "").0, 401, "{text}");
    }
    // Without those options, the others apply.
    std::fs::write(&config, of(&private, "public-read = true")).expect("written");
    server.signal("HUP");
    server.logs("configuration loaded applied=public-read");
    assert_eq!(request(&server, "GET", "/x", "").0, 200);
}

/// An open connection has the identity that its handshake has verified, so rights do not change
/// together with the authorities of clients.
#[test]
fn authorities_of_clients_need_a_restart() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let (certificate, key) = authority.local(&files);
    let base = format!(
        "dir = '{}'\ntls-cert = '{certificate}'\ntls-key = '{key}'\n",
        folder.path().display()
    );
    let config = files.file("onrush.toml", &base);
    let server = serve(&config);
    let client = authority.client_config();
    let ca = authority.file(&files, "ca");
    let text = format!("{base}tls-client-ca = '{ca}'\ntls-client-optional = true\nhsts = 60\n");
    std::fs::write(&config, text).expect("written");
    server.signal("HUP");
    let log = server.logs("options=\"tls-client-ca, tls-client-optional\"");
    assert!(log.contains(NEED_RESTART), "{log}");
    let mut client = Client::connect(&server, &client).expect("a handshake");
    let response = client.get("/x").expect("a response");
    assert!(
        !response.contains("Strict-Transport-Security"),
        "{response}"
    );
}

/// Users are loaded again while the configuration is still being read. Here, that does not end.
#[test]
fn a_user_who_is_removed_does_not_wait_for_the_configuration() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let users = crate::program::users::UsersFile::new();
    users.add("ann", &["all"]);
    users.add("bob", &["all"]);
    let text = format!(
        "dir = '{}'\nauth-file = '{}'\n",
        folder.path().display(),
        users.path()
    );
    let config = files.file("onrush.toml", text);
    let server = serve(&config);
    assert_eq!(request(&server, "GET", "/x", &login("ann")).0, 200);
    std::fs::remove_file(&config).expect("removed");
    let made = output(Command::new("mkfifo").arg(&config));
    assert!(made.status.success(), "{made:?}");
    for (count, name) in ["ann", "bob"].into_iter().enumerate() {
        users.user("remove", name, &[], "");
        server.signal("HUP");
        crate::program::wait_until(|| server.log().matches("users loaded").count() == count + 1);
        assert_eq!(request(&server, "GET", "/x", &login(name)).0, 401);
    }
    assert!(!server.log().contains("configuration loaded"));
}

/// What cannot be undone, such as removing objects, happens only if all else applies.
#[test]
fn a_mistake_removes_no_object_of_a_cache() {
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let (certificate, key) = authority.local(&files);
    let of = |cache: &str, certificate: &str| {
        format!(
            "dir = '{}'\ncache = '{cache}'\ntls-key = '{key}'\ntls-cert = '{certificate}'\n\
             bind-plain = '127.0.0.1:0'\n",
            folder.path().join("cache").display()
        )
    };
    let config = files.file("onrush.toml", of("128MiB", &certificate));
    let server = serve(&config);
    let printed = server.prints("\nhttp://");
    let address = printed.split("\nhttp://").nth(1).expect("the address");
    let address = address.trim_end().trim_end_matches('/').parse();
    let address: SocketAddr = address.expect("an address");
    const OBJECTS: usize = 24;
    let content = "x".repeat(4 << 20);
    let paths = || (0..OBJECTS).map(|number| format!("/ac/{number:064x}"));
    for path in paths() {
        let length = content.len();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        let response = plain(address, &(head + &content));
        assert!(response.starts_with("HTTP/1.1 20"), "{response}");
    }
    let stored = || {
        let is_stored = |path: &String| {
            let request =
                format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            plain(address, &request).starts_with("HTTP/1.1 200")
        };
        paths().filter(is_stored).count()
    };
    assert_eq!(stored(), OBJECTS);
    std::fs::write(&config, of("64MiB", "/absent")).expect("written");
    server.signal("HUP");
    server.logs("the configuration in use remains");
    assert_eq!(stored(), OBJECTS);
    std::fs::write(&config, of("64MiB", &certificate)).expect("written");
    server.signal("HUP");
    server.logs("configuration loaded applied=cache");
    let left = stored();
    assert!(left > 0 && left <= 16, "{left}");
}
