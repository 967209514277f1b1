//! Shares of clients of the descriptors for files.

use crate::common::*;
use onrush_files::FilesOptions;
use onrush_rt::descriptors::Descriptors;

/// Twenty files may be open for downloads, and twelve for uploads.
fn on_drivers(test: impl Fn(&mut TestServer, &Descriptors)) {
    for driver in drivers() {
        let budget = Descriptors::new(64);
        let options = FilesOptions {
            descriptors: budget.clone(),
            ..writable()
        };
        test(&mut TestServer::real("/", &options, driver), &budget);
    }
}

/// A connection that has sent `request`, and the status of the response.
fn ask(server: &mut TestServer, request: &[u8]) -> (Connection, String) {
    let mut connection = server.connect();
    let status = status(server, &mut connection, request);
    (connection, status)
}

/// The status of the response to a request that is sent as far as given.
fn status(server: &mut TestServer, connection: &mut Connection, request: &[u8]) -> String {
    server.send(connection, request);
    let head = server.receive_until(connection, |bytes| bytes.len() > 12);
    String::from_utf8_lossy(&head[9..12]).into_owned()
}

fn download(number: usize) -> Vec<u8> {
    format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n").into_bytes()
}

#[test]
fn downloads_of_one_client_leave_files_to_others() {
    on_drivers(|server, budget| {
        for number in 0..30 {
            server.add(&number.to_string(), &vec![b'x'; 12 << 20]);
        }
        let mut slow = Vec::new();
        for number in 0..30 {
            let (connection, status) = ask(server, &download(number));
            if status != "200" {
                assert_eq!(status, "503");
                break;
            }
            slow.push(connection);
        }
        // Half of them, and then half of what is left.
        assert!((14..=16).contains(&slow.len()), "{}", slow.len());
        let mut other = server.connect_from_another_address();
        assert_eq!(status(server, &mut other, &download(29)), "200");
        drop((slow, other));
        wait_until(server, |_| budget.used().files <= 10);
        assert_eq!(ask(server, &download(29)).1, "200");
    });
}

#[test]
fn uploads_of_one_client_leave_files_to_others() {
    on_drivers(|server, budget| {
        let begin = |number: usize| {
            let head = format!("PUT /{number} HTTP/1.1\r\nHost: test\r\nContent-Length: 2000000");
            format!("{head}\r\nExpect: 100-continue\r\n\r\n").into_bytes()
        };
        let mut slow = Vec::new();
        for number in 0..20 {
            let (mut connection, status) = ask(server, &begin(number));
            if status != "100" {
                assert_eq!(status, "429");
                break;
            }
            server.send(&mut connection, &[b'x'; 600_000]);
            slow.push(connection);
            // The file is open when the server has read that.
            wait_until(server, |_| budget.used().files as usize >= slow.len());
        }
        assert!((8..=10).contains(&slow.len()), "{}", slow.len());
        let mut other = server.connect_from_another_address();
        assert_eq!(status(server, &mut other, &begin(29)), "100");
        let form = b"--x\r\nContent-Disposition: form-data; name=f; filename=g\r\n\r\nc\r\n--x--";
        let post = "POST /\nContent-Type: multipart/form-data; boundary=x";
        assert_eq!(server.request(post, form).status, 429);
        assert_eq!(server.request("PUT /small", b"x").status, 201);
    });
}
