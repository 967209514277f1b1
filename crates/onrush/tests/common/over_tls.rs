//! Connections over TLS for tests that know nothing of it.
//!
//! A test talks to a [`Tunnel`] by plain TCP, and the tunnel talks to the server by TLS. The end of
//! one side becomes the end of the other: `close_notify` and FIN here, FIN there. A connection that
//! ends without `close_notify` becomes a reset. Records are sent in two pieces, so that the server
//! receives parts of them.

use super::{Served, read_some};
use onrush::tls::TlsConfig;
use onrush::tls::rustls::crypto::aws_lc_rs;
use onrush::tls::rustls::pki_types::pem::PemObject;
use onrush::tls::rustls::pki_types::{CertificateDer, ServerName};
use onrush::tls::rustls::{ClientConfig, ClientConnection, Error, RootCertStore};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// A configuration of the server, and one of clients that trust it.
pub static CONFIGS: LazyLock<(TlsConfig, Arc<ClientConfig>)> = LazyLock::new(|| {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let server = TlsConfig::from_pem(cert.pem(), signing_key.serialize_pem()).expect("valid");
    let mut roots = RootCertStore::empty();
    let der = CertificateDer::from_pem_slice(cert.pem().as_bytes()).expect("a certificate");
    roots.add(der).expect("a certificate");
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3 and 1.2")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (server, Arc::new(client))
});

/// A client before its handshake.
pub fn client() -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(CONFIGS.1.clone(), name).expect("a client")
}

/// A connection to `server` through TLS. As with TCP, it is made before the server knows of it: the
/// handshake takes place behind it.
pub fn connect(server: SocketAddr) -> TcpStream {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let (inner, _) = listener.accept().expect("a connection");
    let mut far = TcpStream::connect(server).expect("the server listens");
    far.set_nodelay(true).expect("an option");
    inner.set_nodelay(true).expect("an option");
    let (from, to) = (
        inner.try_clone().expect("a handle"),
        far.try_clone().expect("a handle"),
    );
    let (established, handshake) = mpsc::channel();
    thread::spawn(move || {
        // A client that has reset its connection does not wait for the handshake.
        let connection: Option<Arc<Mutex<ClientConnection>>> = match from.peek(&mut [0]) {
            Ok(_) => handshake.recv().ok(),
            Err(_) => handshake.try_recv().ok(),
        };
        match connection {
            Some(connection) => encrypt(from, to, &connection),
            None => {
                let _ = reset(&to);
            }
        }
    });
    thread::spawn(move || {
        let mut connection = client();
        while connection.is_handshaking() {
            if connection.complete_io(&mut far).is_err() {
                drop(reset(&inner)); // The server has refused the connection.
                return;
            }
        }
        let connection = Arc::new(Mutex::new(connection));
        // The other thread may have ended.
        let _ = established.send(connection.clone());
        decrypt(far, inner, &connection);
    });
    near
}

fn encrypt(mut from: TcpStream, mut to: TcpStream, connection: &Mutex<ClientConnection>) {
    let mut piece = vec![0; 32 * 1024];
    loop {
        let read = testing::read_some(&mut from, &mut piece);
        let mut records = Vec::new();
        {
            let mut connection = connection.lock().unwrap();
            match &read {
                Ok(1..) => {
                    let bytes = &piece[..*read.as_ref().unwrap_or(&0)];
                    connection.writer().write_all(bytes).expect("memory");
                }
                Ok(0) => connection.send_close_notify(),
                Err(_) => {
                    drop(reset(&to)); // The test has reset the connection.
                    return;
                }
            }
            while connection.wants_write() {
                connection.write_tls(&mut records).expect("memory");
            }
        }
        let (first, second) = records.split_at(records.len() / 3);
        if to
            .write_all(first)
            .and_then(|()| to.write_all(second))
            .is_err()
        {
            return;
        }
        if matches!(read, Ok(0)) {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
    }
}

fn decrypt(mut from: TcpStream, mut to: TcpStream, connection: &Mutex<ClientConnection>) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let read = match testing::read_some(&mut from, &mut piece) {
            Ok(0) | Err(_) => {
                // Without `close_notify` the response may be truncated.
                drop(reset(&to));
                return;
            }
            Ok(read) => read,
        };
        let (mut plaintext, mut records) = (Vec::new(), &piece[..read]);
        let mut has_ended = false;
        while !records.is_empty() {
            let mut connection = connection.lock().unwrap();
            connection.read_tls(&mut records).expect("memory");
            let state = connection.process_new_packets().expect("valid records");
            has_ended |= state.peer_has_closed();
            match connection.reader().read_to_end(&mut plaintext) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                _ => {}
            }
        }
        if to.write_all(&plaintext).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
        if has_ended {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
    }
}

/// Makes the end of this connection a reset.
fn reset(stream: &TcpStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_linger(stream, Some(std::time::Duration::ZERO))?;
    // Ends the reads of the other thread, but sends nothing. The reset follows later, with the last
    // handle.
    stream.shutdown(Shutdown::Read)
}

/// A client after its handshake, whose records the test sees.
pub struct Raw {
    pub stream: TcpStream,
    pub tls: ClientConnection,
    pub plaintext: Vec<u8>,
    pub received_close_notify: bool,
}

impl Raw {
    pub fn connect(served: &Served) -> Raw {
        let mut stream = TcpStream::connect(served.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        let mut tls = client();
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        Raw {
            stream,
            tls,
            plaintext: Vec::new(),
            received_close_notify: false,
        }
    }

    pub fn encrypt(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        self.tls.writer().write_all(bytes).unwrap();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).unwrap();
        }
        records
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let records = self.encrypt(bytes);
        self.stream.write_all(&records).unwrap();
    }

    /// Reads once; returns whether the connection continues.
    pub fn read(&mut self) -> Result<bool, Error> {
        let mut piece = vec![0; 64 * 1024];
        let bytes = match read_some(&mut self.stream, &mut piece) {
            Ok(0) => return Ok(false),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => panic!("{error}"),
        };
        let mut records = &piece[..bytes];
        while !records.is_empty() {
            self.tls.read_tls(&mut records).unwrap();
            let state = self.tls.process_new_packets()?;
            self.received_close_notify |= state.peer_has_closed();
            let _ = self.tls.reader().read_to_end(&mut self.plaintext);
        }
        Ok(true)
    }

    pub fn read_to_end(&mut self) -> Result<(), Error> {
        while self.read()? {}
        Ok(())
    }

    pub fn reset(&self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }
}
