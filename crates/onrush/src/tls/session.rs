//! Interim session by rustls' buffered API.
use super::info::{TlsInfo, TlsParts};
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Session {
    conn: Box<ServerConnection>,
    first: bool,
    closed: bool,
    sent_close: bool,
}

pub(crate) enum Received {
    NeedMore {
        consumed: usize,
        record_bytes: usize,
    },
    Handled {
        consumed: usize,
    },
    Data {
        consumed: usize,
        plaintext: Range<usize>,
    },
    Handshaken {
        consumed: usize,
    },
    Closed,
    PlainHttp,
    Failed(SessionError),
}

#[derive(Debug)]
pub(crate) struct SessionError(rustls::Error);
impl SessionError {
    pub(crate) fn name(&self) -> String {
        self.0.to_string()
    }
}

impl Session {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Session, rustls::Error> {
        let mut conn = ServerConnection::new(config)?;
        conn.set_buffer_limit(None);
        Ok(Session {
            conn: Box::new(conn),
            first: true,
            closed: false,
            sent_close: false,
        })
    }
    pub(crate) fn is_handshaking(&self) -> bool {
        self.conn.is_handshaking()
    }
    fn flush(&mut self, out: &mut Vec<u8>) {
        while self.conn.wants_write() {
            let _ = self.conn.write_tls(out);
        }
    }
    pub(crate) fn receive(&mut self, input: &mut [u8], out: &mut Vec<u8>) -> Received {
        if std::mem::take(&mut self.first)
            && input.len() >= 4
            && (input.starts_with(b"GET ")
                || input.starts_with(b"PUT ")
                || input.starts_with(b"POST")
                || input.starts_with(b"HEAD"))
        {
            return Received::PlainHttp;
        }
        if self.closed {
            return Received::Closed;
        }
        if input.len() < 5 {
            return Received::NeedMore {
                consumed: 0,
                record_bytes: 5,
            };
        }
        let bytes = 5 + usize::from(u16::from_be_bytes([input[3], input[4]]));
        if bytes > 16640 + 5 {
            return Received::Failed(SessionError(rustls::Error::General("record".into())));
        }
        if input.len() < bytes {
            return Received::NeedMore {
                consumed: 0,
                record_bytes: bytes,
            };
        }
        let handshaking = self.conn.is_handshaking();
        let mut record = &input[..bytes];
        while !record.is_empty() {
            if self.conn.read_tls(&mut record).is_err() {
                break;
            }
            match self.conn.process_new_packets() {
                Ok(state) => self.closed |= state.peer_has_closed(),
                Err(error) => {
                    self.flush(out);
                    return Received::Failed(SessionError(error));
                }
            }
        }
        self.flush(out);
        let mut n = 0;
        while n < bytes {
            match self.conn.reader().read(&mut input[n..bytes]) {
                Ok(0) | Err(_) => break,
                Ok(m) => n += m,
            }
        }
        if n > 0 {
            return Received::Data {
                consumed: bytes,
                plaintext: 0..n,
            };
        }
        if self.closed {
            return Received::Closed;
        }
        match handshaking && !self.conn.is_handshaking() {
            true => Received::Handshaken { consumed: bytes },
            false => Received::Handled { consumed: bytes },
        }
    }
    pub(crate) fn send(&mut self, plaintext: &[u8], _: u64, out: &mut Vec<u8>) -> io::Result<()> {
        self.conn.writer().write_all(plaintext)?;
        self.flush(out);
        Ok(())
    }
    pub(crate) fn send_both(
        &mut self,
        first: &[u8],
        second: &[u8],
        now: u64,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.send(first, now, out)?;
        self.send(second, now, out)
    }
    pub(crate) fn send_with(
        &mut self,
        max: usize,
        now: u64,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut room = vec![0; max.min(16384)];
        let n = fill(&mut room)?;
        self.send(&room[..n], now, out)?;
        Ok(n)
    }
    pub(crate) fn close_notify(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.sent_close, true) {
            self.conn.send_close_notify();
            self.flush(out);
        }
    }
    pub(crate) fn take_info(&mut self) -> Option<TlsInfo> {
        Some(TlsInfo::new(TlsParts {
            version: self.conn.protocol_version()?,
            cipher_suite: self.conn.negotiated_cipher_suite()?.suite(),
            server_name: self.conn.server_name().map(str::to_owned),
            alpn: self.conn.alpn_protocol().map(<[u8]>::to_vec),
            peer_certificates: self
                .conn
                .peer_certificates()
                .unwrap_or_default()
                .iter()
                .map(|c| c.clone().into_owned())
                .collect(),
            is_resumed: self.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
        }))
    }
}
