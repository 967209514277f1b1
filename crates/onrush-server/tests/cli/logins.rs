//! The ways to log in to the real program, on both drivers, and hostile credentials.

use crate::program::certificates::Authority;
use crate::program::users::{UsersFile, basic, login, objects, request, sign, start, users};
use crate::program::{Folder, Server, curl, drivers, is_installed};

#[test]
fn every_way_to_log_in_works_and_wrong_credentials_do_not() {
    let (folder, file) = (objects(), users());
    let token = file.user("token", "bob", &["--name", "ci"], "");
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        let get = |fields: &str| request(&server, "GET", "/secret/key.txt", fields).0;
        assert_eq!(get(&login("bob")), 200);
        assert_eq!(get(&login("bob")), 200, "it is remembered");
        assert_eq!(get(&format!("Authorization: Bearer {token}\r\n")), 200);
        assert_eq!(get(&format!("authorization: bearer  {token}\r\n")), 200);
        let both = login("bob") + &login("bob");
        let long = format!("Authorization: Basic {}\r\n", "A".repeat(5000));
        for (fields, expected) in [
            (&*both, 400),
            (&*(login("ann") + &login("bob")), 400),
            ("Authorization: Basic\r\n", 400),
            ("Authorization: Basic %%%\r\n", 400),
            ("Authorization: Basic Ym9i\r\n", 400), // bob, without a colon
            ("Authorization: Basic Ym9iOgA=\r\n", 400), // a NUL
            ("Authorization: Basic Ym9iOv8=\r\n", 400), // not UTF-8
            ("Authorization: Bearer\r\n", 400),
            ("Authorization: Bearer a b\r\n", 400),
            (&*long, 400),
            ("Authorization:\r\n", 401),
            ("Authorization: Digest username=\"bob\"\r\n", 401),
            ("Authorization: Negotiate abc\r\n", 401),
            ("Authorization: Bearer onrush_AAAA\r\n", 401),
            ("Authorization: Basic Ym9iOng=\r\n", 401),
            (&*basic("stranger", "bob-password"), 401),
            (&*basic("bob", ""), 401),
        ] {
            assert_eq!(get(fields), expected, "{driver}: {fields}");
            // Wrong credentials are refused even where none are needed.
            let (status, _) = request(&server, "GET", "/pub/open.txt", fields);
            let is_delayed = status == 429; // Many have failed by now.
            assert!(
                status == expected || is_delayed,
                "{driver}: {fields}: {status}"
            );
        }
    }
}

#[test]
fn a_folder_with_a_password_over_tls_takes_two_commands() {
    if !is_installed("curl") {
        return;
    }
    let (folder, file) = (Folder::new(), UsersFile::new());
    let data = folder.path().join("data");
    file.user("add", "ann", &[], "correct horse\n");
    let arguments = [
        "--auth-file",
        file.path(),
        "--bind",
        "0.0.0.0",
        "--tls-self-signed",
    ];
    let server = Server::start(&data, &arguments);
    let url = server.url.replace("0.0.0.0", "localhost") + "/photo.jpg";
    let ca = data.join(".onrush/tls/certificate.pem");
    let ca = ca.to_str().expect("UTF-8");
    let source = folder.file("source", "content");
    let source = source.to_str().expect("UTF-8");
    let login = ["--cacert", ca, "-u", "ann:correct horse"];
    curl(&[&login[..], &["-f", "-T", source, &url]].concat());
    assert_eq!(curl(&[&login[..], &["-f", &url]].concat()), "content");
    let status = [
        "--cacert",
        ca,
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        &url,
    ];
    assert_eq!(curl(&status), "401");
    assert!(!server.log().contains("not encrypted"), "{}", server.log());
}

#[test]
fn a_signed_url_gives_one_right_until_it_expires_or_is_revoked() {
    let (folder, file) = (objects(), users());
    let url = sign(
        &file,
        "/secret/key.txt",
        &["--expires", "1h", "--user", "bob"],
    );
    let expired = sign(
        &file,
        "/secret/key.txt",
        &["--expires", "0s", "--user", "bob"],
    );
    let put = sign(
        &file,
        "/in/%C3%A4",
        &["--expires", "1h", "--method", "put", "--user", "drop"],
    );
    let beyond = sign(
        &file,
        "/secret/key.txt",
        &["--expires", "1h", "--user", "ann"],
    );
    let list = sign(&file, "/secret/", &["--expires", "1h", "--user", "bob"]);
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--access-log=on"]);
        let status =
            |method: &str, target: &str, fields: &str| request(&server, method, target, fields).0;
        assert_eq!(status("GET", &url, ""), 200);
        assert_eq!(status("HEAD", &url, ""), 200);
        assert_eq!(
            status("GET", &url.replace("/secret", "/pub/%2e%2e//secret"), ""),
            200
        );
        assert_eq!(status("GET", &list, ""), 200);
        for (method, target, expected) in [
            ("PUT", &url, 403),
            ("DELETE", &url, 403),
            ("POST", &url, 403),
            ("GET", &url.replace("key.txt", "other.txt"), 403),
            ("GET", &url.replace("/secret/key.txt", "/pub/open.txt"), 403),
            ("GET", &url.replace("bob", "ann"), 403),
            ("GET", &url.replace("expires=", "expires=9"), 403),
            ("GET", &(url.clone() + "&limit=1"), 400),
            ("GET", &(url.clone() + "&onrush-user=bob"), 400),
            ("GET", &url.replace("onrush-user=bob&", ""), 400),
            ("GET", &list.replace("/secret/?", "/secret?"), 403),
            ("GET", &list.replace("/secret/?", "/secret/key.txt?"), 403),
            ("GET", &expired, 403),
            ("GET", &beyond, 403),
        ] {
            assert_eq!(
                status(method, target, ""),
                expected,
                "{driver}: {method} {target}"
            );
        }
        assert_eq!(status("GET", &url, &login("bob")), 400, "ambiguous");
        assert_eq!(status("PUT", &put, ""), 201);
        assert_eq!(status("PUT", &put, ""), 403, "drop may not replace");
        server.logs("user=bob");
        std::fs::remove_file(folder.path().join("in/ä")).expect("it was created");
    }
    let server = start(&folder, &file, "auto", &[]);
    file.user("passwd", "bob", &[], "another\n");
    server.signal("HUP");
    server.logs("users loaded");
    assert_eq!(
        request(&server, "GET", &url, "").0,
        403,
        "a new password revokes it"
    );
    assert_eq!(request(&server, "GET", "/", &login("bob")).0, 401);
    assert_eq!(
        request(&server, "GET", "/", &basic("bob", "another")).0,
        200
    );
}

#[test]
fn a_client_certificate_is_a_login() {
    if !is_installed("curl") {
        return;
    }
    let (folder, file) = (objects(), users());
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let keys = Folder::new();
    let (certificate, key) = servers.local(&keys);
    let (ca, client_ca) = (
        servers.file(&keys, "ca.pem"),
        clients.file(&keys, "clients.pem"),
    );
    let eve = clients.issue(&["eve.example"]).write(&keys, "eve");
    let other = clients.issue(&["other.example"]).write(&keys, "other");
    file.user(
        "add",
        "eve",
        &["--no-password", "--certificate", "dns:eve.example"],
        "",
    );
    for driver in drivers() {
        let more = [
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
            "--tls-client-ca",
            &client_ca,
        ];
        let server = start(
            &folder,
            &file,
            driver,
            &[&more[..], &["--tls-client-optional"]].concat(),
        );
        let url = format!("{}/secret/key.txt", server.url);
        let status = |client: Option<&(String, String)>| {
            let mut arguments = vec![
                "--cacert",
                &ca,
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                &url,
            ];
            if let Some((certificate, key)) = client {
                arguments.extend(["--cert", certificate, "--key", key]);
            }
            curl(&arguments)
        };
        assert_eq!(status(None), "401");
        assert_eq!(status(Some(&eve)), "200");
        assert_eq!(status(Some(&other)), "401");
    }
}

#[test]
fn curl_logs_in() {
    if !is_installed("curl") {
        return;
    }
    let (folder, file) = (objects(), users());
    let token = file.user("token", "bob", &[], "");
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--access-log-format=combined"]);
        let url = format!("{}/secret/key.txt", server.url);
        assert_eq!(curl(&["-u", "bob:bob-password", &url]), "classified");
        assert_eq!(
            curl(&["--anyauth", "-u", "bob:bob-password", &url]),
            "classified"
        );
        assert_eq!(curl(&["--oauth2-bearer", &token, &url]), "classified");
        let upload = folder.file("source", vec![b'x'; 2_000_000]);
        let source = upload.to_str().expect("UTF-8");
        let to = format!("{}/in/{driver}", server.url);
        let put = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-u",
            "bob:bob-password",
            "-T",
            source,
            &to,
        ];
        assert_eq!(curl(&put), "201");
        server.logs("127.0.0.1 - bob [");
        let status = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-u",
            "bob:wrong",
            &url,
        ];
        assert_eq!(curl(&status), "401");
        server.logs("login failed");
    }
}
