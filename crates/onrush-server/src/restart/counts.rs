//! What the old process knows of the quotas: the new one asks for it before it serves, and so needs
//! no count of the objects. Until the old one has ended, both share what is left
//! ([`QuotaStore::hand_over`](onrush_store::QuotaStore::hand_over)).
//!
//! The response is a message for each quota that is counted, and the last message.

use super::{END, NO_SOCKETS, Predecessor, receive, send};
use crate::commands::cli::RESTART_VARIABLE;
use crate::process::failure::error_text;
use onrush_store::{HandedOver, Key, Quota};
use std::io;
use std::os::fd::OwnedFd;

/// The question of the new process.
pub(super) const QUESTION: &[u8] = b"quotas";

/// The value of the variable for the new process, if the old one understands the question.
pub(super) const RESPONDS: &str = "2";

impl Predecessor {
    /// What the other process knows of the quotas, which it shares with this one from now on.
    /// Nothing, if it is of an earlier version.
    pub(crate) fn quotas(&self) -> Vec<HandedOver> {
        if std::env::var_os(RESTART_VARIABLE).is_none_or(|value| value != RESPONDS) {
            return Vec::new();
        }
        ask(&self.channel).unwrap_or_else(|error| {
            let error = error_text(&error);
            tracing::warn!(
                error,
                "the earlier process does not say what it has counted"
            );
            Vec::new()
        })
    }
}

/// Asks for the quotas.
fn ask(channel: &OwnedFd) -> io::Result<Vec<HandedOver>> {
    send(channel, QUESTION, NO_SOCKETS)?;
    let mut known = Vec::new();
    loop {
        let (message, _) = receive(channel)?;
        if message == END {
            return Ok(known);
        }
        known.push(parse(&message).ok_or(io::ErrorKind::InvalidData)?);
    }
}

/// Responds to the question.
pub(super) fn respond(channel: &OwnedFd, known: &[HandedOver]) -> rustix::io::Result<()> {
    for one in known {
        send(channel, &to_message(one), NO_SOCKETS)?;
    }
    send(channel, END, NO_SOCKETS)
}

/// Three numbers, and the path of the folder.
fn to_message(known: &HandedOver) -> Vec<u8> {
    let HandedOver {
        quota,
        used,
        elsewhere,
    } = known;
    let head = format!("{used} {elsewhere} {} /", quota.bytes_max);
    let folder = quota.prefix.as_ref().map(Key::as_bytes);
    [head.as_bytes(), folder.unwrap_or_default()].concat()
}

fn parse(message: &[u8]) -> Option<HandedOver> {
    let mut parts = message.splitn(4, |&byte| byte == b' ');
    let mut number = || str::from_utf8(parts.next()?).ok()?.parse().ok();
    let (used, elsewhere, bytes_max) = (number()?, number()?, number()?);
    let prefix = match parts.next()?.strip_prefix(b"/")? {
        b"" => None,
        folder => Some(Key::parse(folder).ok()?),
    };
    Some(HandedOver {
        quota: Quota { prefix, bytes_max },
        used,
        elsewhere,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    #[test]
    fn what_is_known_arrives() {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None);
        let (old, new) = pair.unwrap();
        let long = [b'n'; 255];
        let long = [&long[..]; 15].join(&b'/');
        let known = [None, Some(&b"a b\n/c"[..]), Some(&long)].map(|prefix| HandedOver {
            quota: Quota {
                prefix: prefix.map(|prefix| Key::parse(prefix).unwrap()),
                bytes_max: u64::MAX,
            },
            used: 5,
            elsewhere: 1 << 40,
        });
        let asked = std::thread::spawn(move || ask(&new));
        assert_eq!(receive(&old).unwrap().0, QUESTION);
        respond(&old, &known).unwrap();
        assert_eq!(asked.join().unwrap().unwrap(), known);
        for wrong in [&b"1 2 3 a"[..], b"1 2 /a", b"1 2 x /a", b"", b"1 2 3 /.."] {
            assert_eq!(parse(wrong), None);
        }
    }
}
