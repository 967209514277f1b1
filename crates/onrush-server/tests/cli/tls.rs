//! HTTPS of the real binary: clients of several kinds, client certificates, several certificates,
//! listeners without TLS, and headers.

use crate::program::certificates::{Authority, Client};
use crate::program::plain::{get, handshakes, plain, printed};
use crate::program::{
    Folder, Server, TIMEOUT, both_drivers, curl, is_installed, onrush, output, pattern,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

/// The options for a certificate.
fn tls((certificate, key): &(String, String)) -> [&str; 4] {
    ["--tls-cert", certificate, "--tls-key", key]
}

/// Runs `openssl s_client`, which sends nothing, and returns what it prints.
fn s_client(server: &Server, arguments: &[&str]) -> String {
    let address = server.address().to_string();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address]);
    let output = output(command.args(arguments).stdin(Stdio::null()));
    let (out, err) = (output.stdout, output.stderr);
    String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&err)
}

/// As [`s_client`], with a request, because the tickets of TLS 1.3 arrive after the handshake.
fn exchange_by_s_client(server: &Server, arguments: &[&str]) -> String {
    let script = "printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' \
        | openssl s_client -ign_eof \"$@\"";
    let address = server.address().to_string();
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", "-connect", &address]);
    let shown = output(shell.args(arguments)).stdout;
    String::from_utf8_lossy(&shown).into_owned()
}

/// Begins with HTTP/2 by prior knowledge. Returns what the server sends first: 9 bytes, which is
/// the head of a frame, or the beginning of a response.
fn begin_with_http2(address: SocketAddr) -> Vec<u8> {
    let mut connection = TcpStream::connect(address).expect("the server accepts");
    connection.set_read_timeout(Some(TIMEOUT)).expect("set");
    let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &empty_settings].concat();
    connection.write_all(&preface).expect("the server reads");
    let mut received = [0; 9];
    let read = connection.read_exact(&mut received);
    read.expect("the server responds");
    received.to_vec()
}

#[test]
fn http2_off_refuses_it_in_handshakes_and_without_tls() {
    if !is_installed("openssl") {
        return;
    }
    let (folder, files) = (Folder::new(), Folder::new());
    let pair = Authority::new("authority").local(&files);
    let own = ["--bind-plain", "127.0.0.2:0", "--admin", "127.0.0.1:0"];
    for driver in both_drivers() {
        for (http2, preferred, is_on) in [("on", "h2", true), ("off", "http/1.1", false)] {
            let more = ["--driver", driver, "--http2", http2];
            let arguments = [&tls(&pair)[..], &own, &more].concat();
            let server = Server::start(folder.path(), &arguments);
            let alpn = |names: &str| s_client(&server, &["-alpn", names]);
            let shown = alpn("h2,http/1.1");
            assert!(
                shown.contains(&format!("ALPN protocol: {preferred}\n")),
                "{shown}"
            );
            let shown = alpn("h2");
            let is_refused = shown.contains("no application protocol");
            assert_eq!(is_refused, !is_on, "{shown}");
            let out = server.prints("\nhttp://127.0.0.2:");
            let (_, beside) = out.split_once("\nhttp://").expect("printed");
            let beside = beside.lines().next().expect("an address");
            let beside: SocketAddr = beside.parse().expect("an address");
            for address in [beside, printed(&server, "admin")] {
                let received = begin_with_http2(address);
                // The first frame of the server is SETTINGS, which has the type 4.
                let is_settings = received[3] == 4;
                let is_response = received == b"HTTP/1.1 ";
                assert_eq!((is_settings, is_response), (is_on, !is_on), "{received:?}");
            }
        }
    }
}

#[test]
fn curl_reads_and_writes_over_both_versions() {
    if !is_installed("curl") {
        return;
    }
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let pair = authority.local(&files);
    let content = pattern(1, 3_000_000);
    let upload = files.file("upload", &content);
    let upload = upload.to_str().expect("UTF-8");
    for driver in both_drivers() {
        for (minor, outcome) in [("2", "tls1.2"), ("3", "tls1.3")] {
            let more = [
                "--allow",
                "put",
                "--driver",
                driver,
                "--admin",
                "127.0.0.1:0",
            ];
            let server = Server::start(folder.path(), &[&tls(&pair)[..], &more].concat());
            assert!(
                server.url.starts_with("https://127.0.0.1:"),
                "{}",
                server.url
            );
            let port = server.address().port();
            let url = format!("https://localhost:{port}/a/{driver}{minor}");
            let version = [
                "--cacert".to_owned(),
                ca.clone(),
                format!("--tlsv1.{minor}"),
                "--tls-max".to_owned(),
                format!("1.{minor}"),
            ];
            let curl = |arguments: &[&str]| {
                let version: Vec<&str> = version.iter().map(String::as_str).collect();
                curl(&[&version[..], arguments].concat())
            };
            let got = files.path().join("got");
            let got = got.to_str().expect("UTF-8");
            let status = ["-w", "%{http_code} %{ssl_verify_result}"];
            assert_eq!(
                curl(&[&["-T", upload, &url], &status[..]].concat()),
                "201 0"
            );
            assert_eq!(curl(&[&["-o", got, &url], &status[..]].concat()), "200 0");
            assert_eq!(std::fs::read(got).expect("a file"), content, "{driver}");
            assert_eq!(handshakes(&server, outcome), 2);
            curl(&["-r", "1000000-1999999", "-o", got, &url]);
            let range = std::fs::read(got).expect("a file");
            assert!(range == content[1_000_000..2_000_000], "{driver}");
            let head = curl(&["-I", &url]).to_ascii_lowercase();
            assert!(head.contains("content-length: 3000000\r\n"), "{head}");
            // ALPN selects HTTP/2 if both speak it.
            for (option, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
                let protocol = ["-o", got, "-w", "%{http_version}", option, &url];
                assert_eq!(curl(&protocol), version);
            }
            // Two connections of one process: the second resumes the session of the first. With
            // TLS 1.2 curl asks for no tickets, so it resumes by the session ID.
            let own = ["--http1.1", "-H", "Connection: close"];
            let twice = [&own[..], &["-o", got, &url, "-o", got, &url]].concat();
            curl(&twice);
            let resumed = handshakes(&server, &format!("{outcome}_resumed"));
            assert_eq!(resumed, 1, "{driver}");
            let metrics = get(printed(&server, "admin"), "/-/metrics", "localhost");
            let expiry = "onrush_tls_certificate_expiry_timestamp_seconds{name=\"localhost\"} ";
            let (_, expiry) = metrics.split_once(expiry).expect("a sample");
            // The certificate is valid until 4096.
            assert!(expiry.starts_with("67090"), "{expiry}");
        }
    }
}

#[test]
fn sessions_are_resumed() {
    if !is_installed("openssl") {
        return;
    }
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let pair = authority.local(&files);
    for driver in both_drivers() {
        let server = Server::start(
            folder.path(),
            &[&tls(&pair)[..], &["--driver", driver]].concat(),
        );
        for version in ["-tls1_2", "-tls1_3"] {
            let session = files.path().join(format!("{driver}{version}"));
            let session = session.to_str().expect("UTF-8");
            let shown = exchange_by_s_client(&server, &[version, "-sess_out", session]);
            assert!(shown.contains("New, TLSv1."), "{driver} {version}: {shown}");
            let shown = exchange_by_s_client(&server, &[version, "-sess_in", session]);
            assert!(
                shown.contains("Reused, TLSv1."),
                "{driver} {version}: {shown}"
            );
        }
    }
}

#[test]
fn wget_and_python_read_and_write() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let pair = authority.local(&files);
    for driver in both_drivers() {
        let more = ["--driver", driver, "--allow", "put"];
        let server = Server::start(folder.path(), &[&tls(&pair)[..], &more].concat());
        let port = server.address().port().to_string();
        if is_installed("wget") {
            let mut wget = Command::new("wget");
            wget.arg(format!("--ca-certificate={ca}"));
            let url = format!("https://localhost:{port}/x");
            let output = output(wget.args(["-qO-", "--tries=1", "--timeout=60", &url]));
            assert_eq!(output.stdout, b"content", "{driver}: {output:?}");
        }
        if is_installed("python3") {
            let script = "import http.client, ssl, sys\n\
                context = ssl.create_default_context(cafile=sys.argv[1])\n\
                port = int(sys.argv[2])\n\
                c = http.client.HTTPSConnection('127.0.0.1', port, context=context, timeout=60)\n\
                body = bytes(range(256)) * 4096\n\
                c.request('PUT', '/python', body)\n\
                r = c.getresponse(); r.read(); assert r.status in (201, 204), r.status\n\
                c.request('GET', '/python')\n\
                r = c.getresponse(); assert r.read() == body\n\
                print(c.sock.version())\n";
            let mut python = Command::new("python3");
            let output = output(python.args(["-c", script, &ca, &port]));
            assert_eq!(output.stdout, b"TLSv1.3\n", "{driver}: {output:?}");
        }
    }
}

#[test]
fn client_certificates_are_required_or_optional() {
    if !is_installed("curl") {
        return;
    }
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let pair = authority.local(&files);
    let clients = Authority::new("clients");
    let client_ca = clients.file(&files, "clients.pem");
    let known = clients.issue(&["known"]).write(&files, "known");
    let unknown = authority.issue(&["unknown"]).write(&files, "unknown");
    for driver in both_drivers() {
        for is_optional in [false, true] {
            let more = ["--driver", driver, "--tls-client-ca", &client_ca];
            let mut arguments = [&tls(&pair)[..], &more, &["--access-log", "on"]].concat();
            if is_optional {
                arguments.push("--tls-client-optional");
            }
            let server = Server::start(folder.path(), &arguments);
            let url = format!("{}/x", server.url);
            for version in ["1.2", "1.3"] {
                let get = |client: Option<&(String, String)>| {
                    let mut curl = Command::new("curl");
                    curl.args(["-sS", "--max-time", "60", "--cacert", &ca]);
                    curl.args(["--tls-max", version, &format!("--tlsv{version}"), &url]);
                    if let Some((certificate, key)) = client {
                        curl.args(["--cert", certificate, "--key", key]);
                    }
                    output(&mut curl).stdout
                };
                let case = format!("{driver} {version} {is_optional}");
                assert_eq!(get(Some(&known)), b"content", "{case}");
                assert_eq!(get(Some(&unknown)), b"", "{case}");
                let expected: &[u8] = if is_optional { b"content" } else { b"" };
                assert_eq!(get(None), expected, "{case}");
            }
            server.logs("tls=TLSv1.3 client=CN=known status=200");
            server.logs("a client certificate was refused peer=127.0.0.1:");
            server.logs("CN=unknown, signed by CN=authority has an issuer that is no client CA");
            let absent = "the client has sent no certificate";
            match is_optional {
                false => drop(server.logs(absent)),
                true => assert!(!server.log().contains(absent)),
            }
        }
    }
}

#[test]
fn the_name_that_a_client_asks_for_selects_the_certificate() {
    if !is_installed("openssl") {
        return;
    }
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let first = authority.issue(&["a.example"]).write(&files, "a");
    let second = authority
        .issue(&["b.example", "*.c.example"])
        .write(&files, "b");
    for driver in both_drivers() {
        let arguments = [&tls(&first)[..], &tls(&second), &["--driver", driver]].concat();
        let server = Server::start(folder.path(), &arguments);
        server.logs("certificates loaded certificates=\"a.example (expires 4096-01-01");
        for (asked, subject) in [
            ("a.example", "a.example"),
            ("b.example", "b.example"),
            ("x.c.example", "b.example"),
            ("unknown.example", "a.example"),
        ] {
            for version in ["-tls1_2", "-tls1_3"] {
                let arguments = ["-CAfile", &ca, "-servername", asked, version];
                let shown = s_client(&server, &arguments);
                let subject = format!("subject=CN = {subject}\n");
                assert!(shown.contains(&subject), "{asked}: {shown}");
                assert!(
                    shown.contains("Verify return code: 0 (ok)"),
                    "{asked}: {shown}"
                );
            }
        }
        let shown = s_client(&server, &["-CAfile", &ca, "-noservername"]);
        assert!(shown.contains("subject=CN = a.example\n"), "{shown}");
    }
}

#[test]
fn a_self_signed_certificate_remains_the_same() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    folder.file("x", "content");
    let ca = folder.path().join(".onrush/tls/certificate.pem");
    let ca = ca.to_str().expect("UTF-8");
    let mut fingerprints = Vec::new();
    for driver in both_drivers().into_iter().chain(["auto"]) {
        let arguments = [
            "--tls-self-signed=a.example",
            "--host=b.example",
            "--driver",
            driver,
        ];
        let server = Server::start(folder.path(), &arguments);
        let out = server.prints("certificate sha256 ");
        let (_, fingerprint) = out.split_once("certificate sha256 ").expect("printed");
        fingerprints.push(fingerprint.trim_end().to_owned());
        let port = server.address().port();
        for name in ["localhost", "127.0.0.1", "a.example", "b.example"] {
            let resolve = format!("{name}:{port}:127.0.0.1");
            let url = format!("https://{name}:{port}/x");
            let status = ["-o", "/dev/null", "-w", "%{http_code}"];
            let arguments = [&["--cacert", ca, "--resolve", &resolve, &url], &status[..]].concat();
            // a.example is in the certificate, but not a --host.
            let expected = if name == "a.example" { "421" } else { "200" };
            assert_eq!(curl(&arguments), expected, "{name}");
        }
        // Clients can neither see nor read the files.
        let get = |path: &str| curl(&["--cacert", ca, &format!("{}{path}", server.url)]);
        assert!(!get("/?format=json").contains("onrush"));
        assert!(!get("/.onrush/tls/self-signed.pem").contains("KEY"));
    }
    assert!(
        fingerprints.windows(2).all(|two| two[0] == two[1]),
        "{fingerprints:?}"
    );
    if is_installed("openssl") {
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-noout", "-fingerprint", "-sha256", "-in", ca]);
        let shown = String::from_utf8(output(&mut openssl).stdout).expect("text");
        let (_, shown) = shown.split_once('=').expect("a fingerprint");
        assert_eq!(shown.trim_end(), fingerprints[0]);
    }
}

#[test]
fn plain_requests_are_redirected_to_the_same_resource() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("a b", "content");
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let pair = authority.local(&files);
    for driver in both_drivers() {
        let more = [
            "--driver",
            driver,
            "--http-redirect=0",
            "--host=a.example",
            "--admin=same",
            "--allow=put",
        ];
        let server = Server::start(folder.path(), &[&tls(&pair)[..], &more].concat());
        let (https, at) = (server.address().port(), printed(&server, "redirect"));
        for (host, expected) in [
            ("localhost".to_owned(), "localhost"),
            (format!("localhost:{}", at.port()), "localhost"),
            ("a.example:80".to_owned(), "a.example"),
            ("[::1]".to_owned(), "[::1]"),
        ] {
            let response = get(at, "/a%20b?c=d%0d", &host);
            assert!(response.starts_with("HTTP/1.1 308 "), "{host}: {response}");
            let field = format!("\r\nLocation: https://{expected}:{https}/a%20b?c=d%0d\r\n");
            assert!(response.contains(&field), "{host}: {response}");
            assert!(!response.contains("Strict-Transport"), "{response}");
        }
        // The target has a host of its own (RFC 9112 §3.2.2).
        let response = get(at, "http://a.example/x", "localhost");
        let field = format!("\r\nLocation: https://a.example:{https}/x\r\n");
        assert!(response.contains(&field), "{response}");
        for (target, host) in [
            ("/", "evil.example"),
            ("/", "localhost@evil.example"),
            ("/", "evil.example/localhost"),
            ("/", "localhost:80:80"),
            ("http://evil.example/", "localhost"),
        ] {
            let response = get(at, target, host);
            assert!(response.starts_with("HTTP/1.1 400 "), "{host}: {response}");
            assert!(!response.contains("Location"), "{host}: {response}");
        }
        let response = plain(at, "GET / HTTP/1.0\r\n\r\n");
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        let put = "PUT /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
        assert!(plain(at, put).starts_with("HTTP/1.1 308 "));
        assert!(!folder.path().join("x").exists());
        // Load balancers do not follow redirections.
        for path in ["/-/health", "/-/ready"] {
            assert!(get(at, path, "localhost").starts_with("HTTP/1.1 200 "));
        }
        assert!(get(at, "/-/metrics", "localhost").starts_with("HTTP/1.1 308 "));
        if is_installed("curl") {
            let url = format!("http://localhost:{}/a%20b", at.port());
            assert_eq!(curl(&["-L", "--cacert", &ca, &url]), "content");
        }
    }
}

#[test]
fn hsts_is_sent_over_tls_only() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let pair = authority.local(&files);
    let config = authority.client_config();
    const FIELD: &str = "Strict-Transport-Security: max-age=7\r\n";
    for driver in both_drivers() {
        // The listeners differ by their address only.
        let more = [
            "--driver",
            driver,
            "--hsts=7",
            "--bind-plain=127.0.0.2:0",
            "--http-redirect=127.0.0.3:0",
        ];
        let server = Server::start(folder.path(), &[&tls(&pair)[..], &more].concat());
        let mut client = Client::connect(&server, &config).expect("a connection");
        for (path, status) in [("/x", 200), ("/absent", 404), ("/", 200)] {
            let response = client.get(path).expect("a response");
            let line = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&line), "{response}");
            assert_eq!(response.matches(FIELD).count(), 1, "{response}");
        }
        let out = server.prints("\nhttp://127.0.0.2:");
        let (_, rest) = out.split_once("\nhttp://").expect("printed");
        let address = rest.lines().next().expect("a line");
        let response = get(address.parse().expect("an address"), "/x", "localhost");
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(!response.contains("Strict"), "{response}");
        let response = get(printed(&server, "redirect"), "/x", "localhost");
        assert!(response.starts_with("HTTP/1.1 308 "), "{response}");
        assert!(!response.contains("Strict"), "{response}");
    }
    let server = Server::start(folder.path(), &tls(&pair));
    let mut client = Client::connect(&server, &config).expect("a connection");
    assert!(!client.get("/x").expect("a response").contains("Strict"));
    // Behind a mapping of ports.
    let mapped = ["--http-redirect=0", "--https-port=443"];
    let server = Server::start(folder.path(), &[&tls(&pair)[..], &mapped].concat());
    let response = get(printed(&server, "redirect"), "/x", "localhost");
    assert!(
        response.contains("Location: https://localhost/x\r\n"),
        "{response}"
    );
}

#[test]
fn a_request_without_tls_gets_an_explanation() {
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let pair = authority.local(&files);
    for driver in both_drivers() {
        let arguments = [&tls(&pair)[..], &["--driver", driver]].concat();
        let server = Server::start(folder.path(), &arguments);
        let response = get(server.address(), "/", "localhost");
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        assert!(response.contains("TLS"), "{response}");
    }
}

/// The socket of a proxy on the same machine.
#[test]
fn a_unix_socket_may_be_without_tls() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    folder.file("x", "content");
    let socket = folder.path().join(".socket");
    let socket = socket.to_str().expect("UTF-8");
    let plain = format!("--bind-plain=unix:{socket}");
    let server = Server::start(folder.path(), &["--tls-self-signed", &plain]);
    assert!(server.prints("unix:").contains(socket));
    let arguments = ["--unix-socket", socket, "http://localhost/x"];
    assert_eq!(curl(&arguments), "content");
}

#[test]
fn each_address_gets_the_certificates() {
    let (folder, files) = (Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let pair = authority.local(&files);
    let mut command = onrush();
    command.arg(folder.path()).args(tls(&pair));
    command.args(["--bind", "127.0.0.1:0,127.0.0.2:0", "--http-redirect", "0"]);
    let server = Server::run(command);
    let out = server.prints("redirect http://127.0.0.2:");
    let starts = ["https://127.0.0.1:", "https://127.0.0.2:"];
    let redirects = ["redirect http://127.0.0.1:", "redirect http://127.0.0.2:"];
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    for (line, start) in lines.iter().zip(starts.iter().chain(&redirects)) {
        assert!(line.starts_with(start), "{out}");
    }
}
