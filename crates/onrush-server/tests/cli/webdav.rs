//! Rights of WebDAV in the running program, and locks of users.

use crate::program::users::{UsersFile, login, start};
use crate::program::{Folder, Server, drivers};

/// The status of a request with a body, and the whole response.
fn send(server: &Server, name: &str, request: &str, fields: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\
         {}{fields}\r\n{body}",
        login(name)
    );
    let response = server.exchange(head.as_bytes());
    let status = response.get(9..12).and_then(|status| status.parse().ok());
    (
        status.unwrap_or_else(|| panic!("{request}: {response:?}")),
        response,
    )
}

const LOCK: &str = "<lockinfo xmlns=\"DAV:\"><lockscope><exclusive/></lockscope><locktype><write/>\
    </locktype></lockinfo>";
const PATCH: &str = "<propertyupdate xmlns=\"DAV:\"><set><prop><x/></prop></set></propertyupdate>";

#[test]
fn each_method_needs_its_rights() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        for name in ["pub/a", "pub/secret/key", "in/old", "own/x/y"] {
            folder.file(name, name);
        }
        file.add(
            "ann",
            &[
                "/pub=read,list",
                "/pub/secret=none",
                "/in=create",
                "/own=all",
            ],
        );
        file.add("bob", &["all", "/own/x=read,list"]);
        let server = start(&folder, &file, driver, &["--webdav"]);
        for (name, request, fields, body, status) in [
            ("", "PROPFIND /pub/", "Depth: 1\r\n", "", 401),
            ("ann", "PROPFIND /pub/", "Depth: 1\r\n", "", 207),
            ("ann", "PROPFIND /pub", "Depth: 1\r\n", "", 207),
            ("ann", "PROPFIND /pub/secret/key", "Depth: 0\r\n", "", 403),
            ("ann", "PROPFIND /pub/%73ecret/", "Depth: 1\r\n", "", 403),
            ("ann", "PROPFIND /in", "Depth: 1\r\n", "", 403),
            ("ann", "PROPFIND /", "Depth: 0\r\n", "", 403),
            ("ann", "MKCOL /pub/new", "", "", 403),
            ("ann", "MKCOL /in/new", "", "", 201),
            ("ann", "PROPPATCH /in/old", "", PATCH, 403),
            ("ann", "PROPPATCH /own/x/y", "", PATCH, 207),
            ("ann", "LOCK /pub/a", "", LOCK, 403),
            ("ann", "LOCK /in/old", "", LOCK, 403),
            ("ann", "LOCK /in/created", "", LOCK, 201),
            ("ann", "COPY /pub", "Destination: /own/pub\r\n", "", 403),
            (
                "ann",
                "COPY /pub/",
                "Depth: 0\r\nDestination: /own/pub/\r\n",
                "",
                403,
            ),
            ("bob", "DELETE /own", "", "", 403),
            ("bob", "LOCK /own", "", LOCK, 403),
            ("bob", "LOCK /own", "Depth: 0\r\n", LOCK, 200),
            ("bob", "DELETE /pub", "", "", 204),
        ] {
            let (found, response) = send(&server, name, request, fields, body);
            assert_eq!(found, status, "{name} {request}: {response}");
        }
        assert!(folder.path().join("own/x/y").exists());
        assert!(!folder.path().join("pub").exists());
    }
}

#[test]
fn a_token_belongs_to_its_user() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        folder.file("a", "a");
        file.add("ann", &["all"]);
        file.add("bob", &["read,list,write"]);
        let server = start(&folder, &file, driver, &["--webdav"]);
        let (status, response) = send(&server, "ann", "LOCK /a", "", LOCK);
        assert_eq!(status, 200);
        let token = token_of(&response);
        let with = format!("If: (<{token}>)\r\n");
        assert_eq!(send(&server, "bob", "PUT /a", &with, "b").0, 423);
        let own = format!("Lock-Token: <{token}>\r\n");
        assert_eq!(send(&server, "bob", "UNLOCK /a", &own, "").0, 409);
        assert_eq!(send(&server, "ann", "PUT /a", &with, "b").0, 204);
        // A page of another origin cannot use the rights of a user.
        let foreign = format!("{with}Origin: http://evil.example\r\n");
        assert_eq!(send(&server, "ann", "PUT /a", &foreign, "b").0, 403);
        assert_eq!(send(&server, "ann", "PROPFIND /a", &foreign, "").0, 403);
        assert_eq!(send(&server, "ann", "UNLOCK /a", &own, "").0, 204);
    }
}

/// With an infinite depth, each folder needs its own rights. The space is for those who may use it.
#[test]
fn a_folder_beneath_needs_its_own_rights() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        for name in ["pub/a", "pub/secret/key", "pub/drop/x", "pub/z/y"] {
            folder.file(name, name);
        }
        let secret = "/pub/secret=none";
        file.add("ann", &["/pub=read,list", secret, "/pub/drop=create"]);
        file.add("bob", &["all"]);
        let options = ["--webdav", "--webdav-infinity=100"];
        let server = start(&folder, &file, driver, &options);
        let shown = |name: &str| {
            let depth = "Depth: infinity\r\n";
            let (status, response) = send(&server, name, "PROPFIND /pub", depth, "");
            assert_eq!(status, 207, "{response}");
            let paths = response.split("<D:href>").skip(1);
            let path = |rest: &str| rest.split('<').next().unwrap_or_default().to_owned();
            paths.map(path).collect::<Vec<_>>().join(" ")
        };
        let hers = "/pub/ /pub/a /pub/drop/ /pub/secret/ /pub/z/ /pub/z/y";
        assert_eq!(shown("ann"), hers);
        let all = "/pub/ /pub/a /pub/drop/ /pub/drop/x /pub/secret/ /pub/secret/key /pub/z/ \
                   /pub/z/y";
        assert_eq!(shown("bob"), all);
        let ask = "<propfind xmlns=\"DAV:\"><prop><quota-used-bytes/></prop></propfind>";
        for (name, status) in [("ann", "404 Not Found"), ("bob", "200 OK")] {
            let (_, response) = send(&server, name, "PROPFIND /pub", "Depth: 0\r\n", ask);
            assert!(response.contains(status), "{name}: {response}");
        }
    }
}

/// A lock of a state of Terraform excludes all others, so it needs the right to write.
#[test]
fn a_lock_of_a_state_needs_the_right_to_write() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        file.add("ann", &["all"]);
        file.add("bob", &["read,list,create"]);
        let server = start(&folder, &file, driver, &["--terraform-state"]);
        let info = "{\"ID\":\"1\"}";
        for (name, method, status) in [
            ("", "LOCK", 401),
            ("bob", "LOCK", 403),
            ("ann", "LOCK", 200),
            ("bob", "UNLOCK", 403),
            ("ann", "UNLOCK", 200),
        ] {
            let request = format!("{method} /a.tfstate");
            let (found, response) = send(&server, name, &request, "", info);
            assert_eq!(found, status, "{name} {method}: {response}");
            assert!(found < 300 || !response.contains("ID"), "{response}");
        }
    }
}

fn token_of(response: &str) -> &str {
    let (_, rest) = response.split_once("Lock-Token: <").expect("a token");
    rest.split_once('>').expect("a token").0
}

/// Otherwise a lock of a user who has gone keeps everyone from a file until it expires.
#[test]
fn a_user_with_all_rights_may_break_a_lock() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        folder.file("d/a", "a");
        folder.file("d/sub/b", "b");
        file.add("ann", &["all"]);
        file.add("bob", &["read,list,write"]);
        file.add("owner", &["/d=all", "/d/sub=read,create"]);
        let server = start(&folder, &file, driver, &["--webdav"]);
        let unlock = |name: &str, path: &str, token: &str| {
            let field = format!("Lock-Token: <{token}>\r\n");
            send(&server, name, &format!("UNLOCK {path}"), &field, "").0
        };
        let (status, response) = send(&server, "bob", "LOCK /d/a", "", LOCK);
        assert_eq!(status, 200);
        let token = token_of(&response);
        let with = format!("If: (<{token}>)\r\n");
        // The token is for its user only; breaking the lock is another, visible step.
        assert_eq!(send(&server, "owner", "PUT /d/a", &with, "x").0, 423);
        let made_up = "urn:uuid:f81d4fae-7dec-41d0-a765-00a0c91e6bf6";
        assert_eq!(unlock("owner", "/d/a", made_up), 409);
        assert_eq!(unlock("owner", "/d/a", token), 204);
        assert_eq!(send(&server, "owner", "PUT /d/a", "", "x").0, 204);
        // A lock of a folder concerns what is beneath.
        let (status, response) = send(&server, "ann", "LOCK /d", "", LOCK);
        assert_eq!(status, 200);
        let token = token_of(&response);
        assert_eq!(unlock("owner", "/d/a", token), 409);
        assert_eq!(unlock("bob", "/d", token), 409);
        assert_eq!(unlock("ann", "/d", token), 204);
    }
}

/// What is locked, by whom, and with which token, is not for users who may not read it.
#[test]
fn locks_of_others_are_shown_to_readers_only() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        for name in ["in/f/secret", "shelf/plan", "own/a"] {
            folder.file(name, name);
        }
        file.add("ann", &["all"]);
        file.add(
            "bob",
            &[
                "/in=create,delete",
                "/in/f/secret=none",
                "/shelf=list",
                "/own=all",
            ],
        );
        let server = start(&folder, &file, driver, &["--webdav"]);
        let mut tokens = Vec::new();
        for path in ["/in/f/secret", "/in/f/open", "/shelf/plan"] {
            let lock = LOCK.replace("</lockinfo>", "<owner>ann-herself</owner></lockinfo>");
            let (status, response) = send(&server, "ann", &format!("LOCK {path}"), "", &lock);
            assert!(matches!(status, 200 | 201), "{response}");
            let (_, rest) = response.split_once("Lock-Token: <").expect("a token");
            tokens.push(rest.split_once('>').expect("a token").0.to_owned());
        }
        for (request, fields, status) in [
            ("DELETE /in/f", "", 403),
            ("DELETE /in/f/", "", 403),
            ("MOVE /own", "Overwrite: T\r\nDestination: /in/f\r\n", 403),
            ("COPY /own/a", "Destination: /in/f/secret\r\n", 403),
            ("COPY /own/a", "Destination: /in/f/open\r\n", 423),
            ("PUT /in/f/open", "", 423),
        ] {
            let (found, response) = send(&server, "bob", request, fields, "");
            assert_eq!(found, status, "{request}: {response}");
            let (_, body) = response.split_once("\r\n\r\n").expect("a body");
            assert!(!body.contains("/in/f"), "{request}: {response}");
        }
        let ask = "PROPFIND /shelf/";
        let (_, listed) = send(&server, "bob", ask, "Depth: 1\r\n", "");
        assert!(listed.contains("<D:activelock>"), "{listed}");
        let (_, whole) = send(&server, "ann", ask, "Depth: 1\r\n", "");
        for secret in ["ann-herself", &tokens[2]] {
            assert!(!listed.contains(secret), "{listed}");
            assert!(whole.contains(secret), "{whole}");
        }
        let (status, response) = send(&server, "ann", "PUT /in/f/open", "", "");
        assert!(
            status == 423 && response.contains("/in/f/open"),
            "{response}"
        );
    }
}

#[test]
fn a_read_only_server_shows_the_properties_of_clients() {
    for driver in drivers() {
        let folder = Folder::new();
        folder.file("a", "content");
        let server = Server::start(
            folder.path(),
            &["--webdav", "--allow", "put", "--driver", driver],
        );
        let set = "<propertyupdate xmlns=\"DAV:\"><set><prop><x xmlns=\"u:x\">value</x></prop>\
            </set></propertyupdate>";
        assert_eq!(send(&server, "", "PROPPATCH /a", "", set).0, 207);
        drop(server);
        let server = Server::start(folder.path(), &["--webdav", "--driver", driver]);
        let (status, response) = send(&server, "", "PROPFIND /a", "Depth: 0\r\n", "");
        assert!(status == 207 && response.contains(">value</"), "{response}");
        assert_eq!(send(&server, "", "PROPPATCH /a", "", set).0, 405);
        let warnings = server.warnings();
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}
