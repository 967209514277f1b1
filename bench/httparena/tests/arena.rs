//! The running program with a data set, static files and a certificate, and its clients.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use testing::{Reply, TempDir, Watchdog, watchdog};

/// How long a client waits for a response.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The items of the data set.
pub(crate) const ITEMS: u64 = 50;

/// The names of the static files. Those with text have compressed siblings.
pub(crate) const TEXTS: [&str; 15] = [
    "analytics.js",
    "app.js",
    "components.css",
    "footer.html",
    "header.html",
    "helpers.js",
    "icon-sprite.svg",
    "layout.css",
    "logo.svg",
    "manifest.json",
    "reset.css",
    "router.js",
    "theme.css",
    "utilities.css",
    "vendor.js",
];
pub(crate) const BINARIES: [&str; 5] = [
    "bold.woff2",
    "hero.webp",
    "regular.woff2",
    "thumb1.webp",
    "thumb2.webp",
];

/// The running program. Dropping it ends it.
pub(crate) struct Arena {
    child: Child,
    http: SocketAddr,
    https: SocketAddr,
    roots: RootCertStore,
    folder: TempDir,
    _watchdog: Watchdog,
}

/// Runs `test` with the program on each driver. `auto` is io_uring where it works.
pub(crate) fn on_each_driver(test: impl Fn(&Arena)) {
    for driver in ["auto", "epoll"] {
        test(&Arena::start(driver));
    }
}

impl Arena {
    fn start(driver: &str) -> Arena {
        let folder = TempDir::new();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("dataset.json"), data_set()).unwrap();
        fs::create_dir(path("static")).unwrap();
        for (number, name) in TEXTS.iter().chain(&BINARIES).enumerate() {
            let file = path("static").join(name);
            fs::write(&file, testing::body(5000 * (number + 1))).unwrap();
        }
        for (number, name) in TEXTS.iter().enumerate() {
            // The server sends what is there; nothing here decodes it.
            let (br, gz) = (format!("{name}.br"), format!("{name}.gz"));
            fs::write(path("static").join(br), testing::body(1000 + number)).unwrap();
            fs::write(path("static").join(gz), testing::body(2000 + number)).unwrap();
        }
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(path("server.crt"), pair.cert.pem()).unwrap();
        fs::write(path("server.key"), pair.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(pair.cert.der().clone()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_onrush-httparena"))
            .args([folder.path(), folder.path()])
            .args(["0", "0"])
            .env("ONRUSH_WORKERS", "2")
            .env("ONRUSH_DRIVER", driver)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut port = || {
            let line = lines.next().expect("an address").unwrap();
            let address: SocketAddr = line.parse().unwrap();
            SocketAddr::from(([127, 0, 0, 1], address.port()))
        };
        let (https, http) = (port(), port());
        Arena {
            child,
            http,
            https,
            roots,
            folder,
            _watchdog: watchdog("HttpArena"),
        }
    }

    /// The path of a static file.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("static").join(name)
    }

    /// A new connection without TLS.
    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.http)
    }

    /// What a client has in common over its connections with TLS: these protocols, and sessions.
    pub(crate) fn tls_client(&self, alpn: &[&str]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// A new connection with TLS.
    pub(crate) fn connect_tls(
        &self,
        config: &Arc<ClientConfig>,
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(config.clone(), name).unwrap();
        StreamOwned::new(client, connect(self.https))
    }

    /// The response to a GET of `target` with these field lines.
    pub(crate) fn get(&self, target: &str, fields: &str) -> Reply {
        self.ask(&[request("GET", target, fields, b"")])
    }

    /// The response to a POST of `body`, whose length is known.
    pub(crate) fn post(&self, target: &str, body: &[u8]) -> Reply {
        let fields = format!("Content-Length: {}\r\n", body.len());
        self.ask(&[request("POST", target, &fields, body)])
    }

    /// The response to a request that is sent in pieces, with a pause between them.
    pub(crate) fn ask(&self, pieces: &[Vec<u8>]) -> Reply {
        let mut client = self.connect();
        for (number, piece) in pieces.iter().enumerate() {
            if number > 0 {
                std::thread::sleep(Duration::from_millis(30));
            }
            client.write_all(piece).unwrap();
        }
        response(client)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A request after whose response the server closes the connection.
pub(crate) fn request(method: &str, target: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    [head.as_bytes(), fields.as_bytes(), b"\r\n", body].concat()
}

/// The only response on a connection.
pub(crate) fn response(mut from: impl Read) -> Reply {
    let mut received = Vec::new();
    from.read_to_end(&mut received).unwrap();
    Reply::parse(&received, false)
}

/// Items with the fields that the benchmark describes. Their values are random, so a response that
/// was not made from them is noticed.
fn data_set() -> String {
    let mut json = String::from("[");
    for id in 1..=ITEMS {
        let comma = if id == 1 { "" } else { "," };
        let (price, quantity) = (fastrand::u32(1..1000), fastrand::u32(1..1000));
        let is_active = fastrand::bool();
        write!(
            json,
            r#"{comma}{{"id":{id},"name":"Item \"{id}\"","category":"tools","price":{price},
                "quantity":{quantity},"active":{is_active},"tags":["new","size {id}"],
                "rating":{{"score":{price},"count":{quantity}}}}}"#
        )
        .unwrap();
    }
    json + "]"
}
