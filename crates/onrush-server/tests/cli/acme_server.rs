//! An ACME server (RFC 8555) for tests that fails as they tell it. It validates nothing, and checks
//! no signatures.

use crate::program::Folder;
use crate::program::certificates::Authority;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use onrush::tls::rustls::crypto::aws_lc_rs;
use onrush::tls::rustls::pki_types::pem::PemObject;
use onrush::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use onrush::tls::rustls::{ServerConfig, ServerConnection, StreamOwned};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the server does wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// A proxy in front of it has no server, and responds by 503 in HTML.
    Down,
    /// Orders are refused.
    Refused,
    /// Orders are refused for an hour.
    RateLimited,
    /// The validation does not end.
    Slow,
    /// The certificate is issued, but cannot be fetched.
    CertificateUnavailable,
    /// The certificate is followed by bytes that are not UTF-8.
    CertificateNotUtf8,
    /// The response to the request for the certificate is lost, and so is the request.
    FinalizeLost,
    /// As `FinalizeLost`, but the order is invalid then.
    FinalizeInvalid,
    /// The certificate is valid from the year 2090.
    FutureCertificate,
}

pub(crate) struct AcmeServer {
    /// The file with the authority of its own HTTPS.
    pub(crate) ca: String,
    pub(crate) directory: String,
    state: Arc<State>,
    _files: Folder,
}

struct State {
    authority: Authority,
    name: String,
    url: String,
    changing: Mutex<Changing>,
}

#[derive(Default)]
struct Changing {
    fault: Fault,
    /// Method and path of the requests.
    requests: Vec<String>,
    chain: Option<Vec<u8>>,
    is_invalid: bool,
}

/// The public key of a request for a certificate: an uncompressed point of P-256.
struct PublicKey(Vec<u8>);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

struct Reply {
    status: &'static str,
    fields: String,
    body: Vec<u8>,
}

impl AcmeServer {
    /// A server that issues certificates for `name`.
    pub(crate) fn start(name: &str, fault: Fault) -> AcmeServer {
        let files = Folder::new();
        let authority = Authority::new("authority of the test");
        let ca = authority.file(&files, "ca.pem");
        let pair = authority.issue(&["127.0.0.1"]);
        let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
        let chain: Result<Vec<_>, _> = chain.collect();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain.expect("PEM"), key)
            .expect("a certificate");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(State {
            authority,
            name: name.to_owned(),
            url: url.clone(),
            changing: Mutex::default(),
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, config) = (shared.clone(), config.clone());
                std::thread::spawn(move || state.serve(client, config));
            }
        });
        let server = AcmeServer {
            ca,
            directory: format!("{url}/dir"),
            state,
            _files: files,
        };
        server.set(fault);
        server
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.state.changing.lock().expect("no panic").fault = fault;
    }

    /// How many requests there were, such as `POST /finalize`.
    pub(crate) fn count(&self, request: &str) -> usize {
        let changing = self.state.changing.lock().expect("no panic");
        let same = changing.requests.iter().filter(|one| *one == request);
        same.count()
    }
}

impl State {
    /// Responds to one request, and closes the connection.
    fn serve(&self, client: TcpStream, config: Arc<ServerConfig>) -> Option<()> {
        let tls = ServerConnection::new(config).ok()?;
        let mut stream = BufReader::new(StreamOwned::new(tls, client));
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let request = line.rsplit_once(' ')?.0.to_owned();
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).ok()?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        let Reply {
            status,
            fields,
            body,
        } = self.reply(&request, &body);
        let head = format!(
            "HTTP/1.1 {status}\r\n{fields}Replay-Nonce: nonce\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = stream.into_inner();
        stream.write_all(head.as_bytes()).ok()?;
        if !request.starts_with("HEAD") {
            stream.write_all(&body).ok()?;
        }
        stream.conn.send_close_notify();
        stream.flush().ok()
    }

    fn reply(&self, request: &str, body: &[u8]) -> Reply {
        let mut state = self.changing.lock().expect("no panic");
        state.requests.push(request.to_owned());
        let url = &self.url;
        match (request, state.fault) {
            (_, Fault::Down) => unavailable("Retry-After: 3600\r\n"),
            ("GET /dir", _) => json_reply(
                "200 OK",
                "",
                json!({"newNonce": format!("{url}/nonce"), "newAccount": format!("{url}/account"),
                       "newOrder": format!("{url}/new")}),
            ),
            ("POST /account", _) => {
                let location = format!("Location: {url}/account/1\r\n");
                json_reply("201 Created", &location, json!({"status": "valid"}))
            }
            ("POST /new", Fault::Refused) => problem("403 Forbidden", "rejectedIdentifier", ""),
            ("POST /new", Fault::RateLimited) => {
                let wait = "Retry-After: 3600\r\n";
                problem("429 Too Many Requests", "rateLimited", wait)
            }
            ("POST /new", fault) => {
                (state.chain, state.is_invalid) = (None, false);
                let location = format!("Location: {url}/order\r\n");
                json_reply("201 Created", &location, self.order(&state, fault))
            }
            ("POST /authorization", _) => json_reply(
                "200 OK",
                "",
                json!({"identifier": {"type": "dns", "value": self.name}, "status": "valid",
                       "challenges": []}),
            ),
            ("POST /order", fault) => json_reply("200 OK", "", self.order(&state, fault)),
            ("POST /finalize", Fault::FinalizeLost) => unavailable(""),
            ("POST /finalize", Fault::FinalizeInvalid) => {
                state.is_invalid = true;
                unavailable("")
            }
            ("POST /finalize", fault) => {
                state.chain = Some(self.issue(body, fault));
                json_reply("200 OK", "", self.order(&state, fault))
            }
            ("POST /certificate", Fault::CertificateUnavailable) => unavailable(""),
            ("POST /certificate", fault) => {
                let mut body = state.chain.clone().expect("it was requested");
                if fault == Fault::CertificateNotUtf8 {
                    body.push(0xff);
                }
                Reply {
                    status: "200 OK",
                    fields: "Content-Type: application/pem-certificate-chain\r\n".to_owned(),
                    body,
                }
            }
            // Nonces.
            _ => json_reply("200 OK", "", json!({})),
        }
    }

    fn order(&self, state: &Changing, fault: Fault) -> Value {
        let url = &self.url;
        let status = match state.chain {
            Some(_) => "valid",
            None if state.is_invalid => "invalid",
            None if fault == Fault::Slow => "pending",
            None => "ready",
        };
        json!({"status": status, "identifiers": [{"type": "dns", "value": self.name}],
               "authorizations": [format!("{url}/authorization")],
               "finalize": format!("{url}/finalize"), "certificate": format!("{url}/certificate")})
    }

    /// The certificate for a request (RFC 8555, section 7.4).
    fn issue(&self, body: &[u8], fault: Fault) -> Vec<u8> {
        let decode = |value: &Value| {
            let text = value.as_str().expect("a string");
            BASE64_URL_SAFE_NO_PAD.decode(text).expect("base64url")
        };
        let signed: Value = serde_json::from_slice(body).expect("JSON");
        let payload: Value = serde_json::from_slice(&decode(&signed["payload"])).expect("JSON");
        let request = decode(&payload["csr"]);
        // The key of P-256 (RFC 5480): the OID of the curve, a bit string, and the point.
        let oid = [0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 3, 0x42, 0];
        let at = request.windows(oid.len()).position(|bytes| bytes == oid);
        let start = at.expect("a key") + oid.len();
        let key = PublicKey(request[start..start + 65].to_vec());
        let from = if fault == Fault::FutureCertificate {
            2090
        } else {
            2020
        };
        let certificate = self.authority.certify(&self.name, from, &key);
        certificate.into_bytes()
    }
}

fn json_reply(status: &'static str, fields: &str, body: Value) -> Reply {
    Reply {
        status,
        fields: format!("Content-Type: application/json\r\n{fields}"),
        body: body.to_string().into_bytes(),
    }
}

/// An error (RFC 8555, section 6.7).
fn problem(status: &'static str, kind: &str, fields: &str) -> Reply {
    let code: u16 = status[..3].parse().expect("a number");
    let body = json!({"type": format!("urn:ietf:params:acme:error:{kind}"), "detail": "a test",
                      "status": code});
    Reply {
        status,
        fields: format!("Content-Type: application/problem+json\r\n{fields}"),
        body: body.to_string().into_bytes(),
    }
}

/// The response of a proxy that has no server.
fn unavailable(fields: &str) -> Reply {
    Reply {
        status: "503 Service Unavailable",
        fields: format!("Content-Type: text/html\r\n{fields}"),
        body: b"<html>".to_vec(),
    }
}
