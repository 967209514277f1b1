//! Requests of web pages of other origins to the real program (CORS).

use crate::program::certificates::Authority;
use crate::program::users::{UsersFile, login, request, sign, start};
use crate::program::{Folder, Server, curl, drivers, is_installed};

#[test]
fn listed_origins_may_read_and_write_and_others_may_not() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in drivers() {
        let start = |origins: &str| {
            let cors = format!("--cors={origins}");
            let arguments = [
                "--allow=put",
                "--driver",
                driver,
                &cors,
                "--auth=ann:ann-password",
            ];
            Server::start(folder.path(), &arguments)
        };
        let app = "Origin: https://app.example\r\nSec-Fetch-Site: cross-site\r\n";
        let other = "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
        let asks = "Access-Control-Request-Method: PUT\r\n\
                    Access-Control-Request-Headers: authorization,content-type\r\n";
        let server = start("https://app.example");
        let allows = "\r\nAccess-Control-Allow-Origin: https://app.example\r\n";
        let credentials = "\r\nAccess-Control-Allow-Credentials: true\r\n";
        let (status, preflight) = request(&server, "OPTIONS", "/x", &format!("{app}{asks}"));
        assert_eq!(status, 204);
        for field in [
            allows,
            credentials,
            "\r\nAccess-Control-Allow-Headers: authorization,content-type\r\n",
            "\r\nAccess-Control-Max-Age: 600\r\n",
            "\r\nVary: Origin\r\n",
        ] {
            assert!(preflight.contains(field), "{field}: {preflight}");
        }
        assert!(preflight.contains("PUT, DELETE"), "{preflight}");
        for (method, login, expected) in [
            ("GET", &*login("ann"), 200),
            ("PUT", &login("ann"), 204),
            ("GET", "", 401),
        ] {
            let (status, response) = request(&server, method, "/x", &format!("{app}{login}"));
            assert_eq!(status, expected, "{method}");
            assert!(
                response.contains(allows) && response.contains(credentials),
                "{response}"
            );
            assert!(response.contains("ETag, Content-Range"), "{response}");
        }
        for (fields, method, expected) in [
            (other, "GET", 403), // The login does not count, and strangers may not read.
            (other, "PUT", 403),
            ("Origin: null\r\n", "PUT", 403),
            ("Origin: https://app.example.evil\r\n", "PUT", 403),
            ("Origin: http://app.example\r\n", "PUT", 403),
            (
                "Origin: https://app.example\r\nOrigin: https://evil.example\r\n",
                "PUT",
                403,
            ),
            ("Sec-Fetch-Site: cross-site\r\n", "PUT", 403),
            ("", "GET", 200),
        ] {
            let fields = format!("{fields}{}", login("ann"));
            let (status, response) = request(&server, method, "/x", &fields);
            assert_eq!(status, expected, "{fields}");
            assert!(!response.contains("Access-Control-Allow"), "{response}");
            assert!(response.contains("\r\nVary: Origin\r\n"), "{response}");
        }
        let (_, preflight) = request(&server, "OPTIONS", "/x", &format!("{other}{asks}"));
        assert!(!preflight.contains("Access-Control"), "{preflight}");

        let server = start("*");
        let fields = format!("{other}{}", login("ann"));
        let (_, response) = request(&server, "GET", "/x", &fields);
        assert!(
            response.contains("\r\nAccess-Control-Allow-Origin: *\r\n"),
            "{response}"
        );
        assert!(!response.contains("Allow-Credentials"), "{response}");
        assert_eq!(request(&server, "PUT", "/x", &fields).0, 403);
        let (_, preflight) = request(&server, "OPTIONS", "/x", &format!("{other}{asks}"));
        assert!(
            preflight.contains("Allow-Methods: GET, HEAD\r\n"),
            "{preflight}"
        );
    }
}

/// The value of `Cross-Origin-Resource-Policy`.
fn policy(response: &str) -> &str {
    let fields = response.lines().filter_map(|line| line.split_once(": "));
    // Names are in lower case in HTTP/2.
    let is_policy = |name: &str| name.eq_ignore_ascii_case("Cross-Origin-Resource-Policy");
    let mut values = fields.filter(|(name, _)| is_policy(name));
    values.next().map_or("", |(_, value)| value)
}

/// What a page of another site makes a browser read is what everyone may read.
#[test]
fn pages_of_other_sites_read_without_the_login_of_their_visitors() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        folder.file("pub/a", "public");
        folder.file("own/b", "secret");
        file.add("ann", &["all"]);
        file.write(&(file.text() + "\n[anonymous]\nrights = { '/pub' = ['read'] }\n"));
        let signed = sign(&file, "/own/b", &["--expires", "1h", "--user", "ann"]);
        let image = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n\
                     Sec-Fetch-Dest: image\r\n";
        let fetch = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n";
        let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
                    Sec-Fetch-Dest: document\r\n";
        let plugin = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
                      Sec-Fetch-Dest: object\r\n";
        let own = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\n";
        let server = start(&folder, &file, driver, &[]);
        for (name, path, fields, status, expected) in [
            ("", "/pub/a", "", 200, ""),
            ("", "/pub/a", image, 200, ""),
            ("ann", "/pub/a", "", 200, "same-origin"),
            ("ann", "/pub/a", image, 200, ""),
            ("ann", "/pub/a", link, 200, "same-origin"),
            ("ann", "/own/b", "", 200, "same-origin"),
            ("ann", "/own/b", own, 200, "same-origin"),
            ("ann", "/own/b", link, 200, "same-origin"),
            ("ann", "/own/b", image, 403, ""),
            ("ann", "/own/b", fetch, 403, ""),
            ("ann", "/own/b", plugin, 403, ""),
            ("ann", "/own/", image, 403, ""),
            ("", "/own/b", image, 403, ""),
            ("", "/own/b", link, 401, ""),
            ("", &signed, image, 200, ""),
        ] {
            for method in ["GET", "HEAD"] {
                if method == "HEAD" && path == "/own/" {
                    continue;
                }
                let fields = format!("{fields}{}", login(name));
                let (found, response) = request(&server, method, path, &fields);
                assert_eq!(found, status, "{name} {path} {fields}: {response}");
                assert_eq!(policy(&response), expected, "{name} {path} {fields}");
                assert!(!response.contains("secret") || status == 200, "{response}");
            }
        }
        let server = start(&folder, &file, driver, &["--cors=https://app.example"]);
        let listed = format!("{image}Referer: https://app.example/page\r\n");
        let other = format!("{image}Referer: https://app.example.evil/\r\n");
        let origin = format!("{fetch}Origin: https://app.example\r\n");
        for (name, path, fields, status, expected) in [
            ("ann", "/own/b", &*listed, 200, "cross-origin"),
            ("ann", "/own/b", &origin, 200, "cross-origin"),
            ("ann", "/own/b", &other, 403, ""),
            ("ann", "/own/b", image, 403, ""),
            ("ann", "/own/b", "", 200, "same-origin"),
            ("", "/pub/a", image, 200, ""),
        ] {
            let fields = format!("{fields}{}", login(name));
            let (found, response) = request(&server, "GET", path, &fields);
            assert_eq!((found, policy(&response)), (status, expected), "{fields}");
        }
        let server = start(&folder, &file, driver, &["--cors=*"]);
        for (name, path, fields, status, expected) in [
            ("", "/pub/a", image, 200, "cross-origin"),
            ("ann", "/pub/a", image, 200, "cross-origin"),
            ("ann", "/own/b", image, 403, "cross-origin"),
            ("ann", "/own/b", "", 200, "same-origin"),
        ] {
            let fields = format!("{fields}{}", login(name));
            let (found, response) = request(&server, "GET", path, &fields);
            assert_eq!((found, policy(&response)), (status, expected), "{fields}");
        }
        // Without access control, the login of a browser decides nothing.
        let server = Server::start(folder.path(), &["--driver", driver]);
        let (status, response) = request(&server, "GET", "/own/b", image);
        assert_eq!((status, policy(&response)), (200, ""));
    }
}

#[test]
fn pages_of_other_sites_cannot_use_a_certificate() {
    if !is_installed("curl") {
        return;
    }
    let (folder, keys) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let (certificate, key) = servers.local(&keys);
    let (ca, client_ca) = (
        servers.file(&keys, "ca.pem"),
        clients.file(&keys, "clients.pem"),
    );
    let eve = clients.issue(&["eve.example"]).write(&keys, "eve");
    for driver in drivers() {
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        let more = ["--tls-client-ca", &client_ca, "--driver", driver];
        let server = Server::start(folder.path(), &[&tls[..], &more].concat());
        let url = format!("{}/x", server.url);
        let status = |site: &str, mode: &str| {
            let fields = [
                format!("Sec-Fetch-Site: {site}"),
                format!("Sec-Fetch-Mode: {mode}"),
            ];
            let own = ["--cacert", &ca, "--cert", &eve.0, "--key", &eve.1];
            let more = ["-H", &fields[0], "-H", &fields[1], "-D", "-", &url];
            curl(&[&own[..], &more].concat())
        };
        let read = status("same-origin", "no-cors");
        assert!(
            read.contains(" 200") && policy(&read) == "same-origin",
            "{read}"
        );
        assert!(status("cross-site", "navigate").contains(" 200"));
        let refused = status("cross-site", "no-cors");
        assert!(
            refused.contains(" 403") && !refused.contains("content\n"),
            "{refused}"
        );
    }
}
