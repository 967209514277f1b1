//! Requests of web pages of other origins to the real program (CORS).

use crate::program::users::{login, request};
use crate::program::{Folder, Server, drivers};

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
            (other, "GET", 200),
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
