//! WebSocket (RFC 6455): messages are sent back. The engine has the upgrade, tungstenite the
//! protocol. tungstenite reads from and writes to a stream; here it is memory, which the task of a
//! connection fills and empties.

use onrush::{FieldError, Request, Response};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::mem;
use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::{Message, Role, WebSocketConfig};
use tungstenite::{Error, WebSocket};

/// The longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// What was received and not read yet, and what was written and not sent yet.
#[derive(Default)]
struct Memory {
    received: VecDeque<u8>,
    written: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.received.is_empty() {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => self.received.read(into),
        }
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends back what the client sends, until one of both closes.
pub(crate) async fn echo(mut request: Request) -> Result<Response, FieldError> {
    let Some(key) = key(&request) else {
        return Ok(Response::text("a WebSocket handshake, please\n")
            .with_status(426)
            .with_header("Upgrade", "websocket")
            .with_header("Sec-WebSocket-Version", "13"));
    };
    let Some(upgrade) = request.upgrade() else {
        return Ok(Response::new(400));
    };
    let Ok(mut upgraded) = upgrade.accept("websocket") else {
        return Ok(Response::new(400));
    };
    let (mut from_client, mut to_client) = (upgraded.from_client, upgraded.to_client);
    upgraded
        .response
        .try_set_header("Sec-WebSocket-Accept", key)?;
    let task = request.worker().spawn(async move {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let memory = Memory::default();
        let mut socket = WebSocket::from_raw_socket(memory, Role::Server, Some(config));
        while let Some(Ok(piece)) = from_client.next().await {
            socket.get_mut().received.extend(&*piece);
            let goes_on = send_back(&mut socket);
            let written = mem::take(&mut socket.get_mut().written);
            if !written.is_empty() && to_client.send(written).await.is_err() || !goes_on {
                break;
            }
        }
        to_client.finish();
    });
    task.detach();
    Ok(upgraded.response)
}

/// The value of `Sec-WebSocket-Accept`, if the request is a handshake (RFC 6455 §4.2.1).
fn key(request: &Request) -> Option<String> {
    let is_named = |value: &[u8]| {
        let mut members = value.split(|&byte| byte == b',');
        members.any(|member| member.trim_ascii().eq_ignore_ascii_case(b"websocket"))
    };
    let is_asked = request.header_values("Upgrade").any(is_named);
    let has_version = request.header("Sec-WebSocket-Version") == Some(b"13");
    let key = request.header("Sec-WebSocket-Key")?;
    (is_asked && has_version).then(|| derive_accept_key(key))
}

/// Reads the messages that have arrived, and writes them back. Returns whether more may follow.
fn send_back(socket: &mut WebSocket<Memory>) -> bool {
    loop {
        let done = match socket.read() {
            Ok(message @ (Message::Text(_) | Message::Binary(_))) => socket.write(message),
            // tungstenite itself answers pings and the end.
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {}
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return socket.flush().is_ok();
            }
            // The end: what is written is sent before.
            Err(_) => {
                let _ = socket.flush();
                return false;
            }
        }
    }
}
