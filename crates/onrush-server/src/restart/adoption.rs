//! Connections of the old process that the new one adopts, in batches over the Unix socket.
//!
//! A message has the descriptors and the facts of a batch, and the reply says which connections the
//! new process serves. The old one keeps its descriptors until then; those that are refused stay
//! and drain.
//!
//! After a message was sent completely, the new process may serve its connections at any time. So
//! without a reply they belong to the new process, also if that has closed its end of the Unix
//! socket: two processes must not read one socket. Only if the new process has ended, and with it
//! its descriptors, does the old one take them back.

use super::{ADOPTION_WAIT, NO_SOCKETS, receive_within, send, status};
use onrush::server::{PassedConnection, Passing};
use onrush::{ConnectionFacts, Handle};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

/// The beginning of a message with connections. A line for each has its deadline and its client.
const CONNECTIONS: &[u8] = b"connections\n";
/// The beginning of the reply: `1` for each connection that is served, otherwise `0`.
const SERVED: &[u8] = b"served ";
/// Connections of one message.
const BATCH_MAX: usize = 64;
/// How long the thread of a restart sleeps at most while no connection becomes idle.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// Passes connections on until that fails. Returns why.
pub(super) fn pass_on(channel: &OwnedFd, passing: &Passing, child: &mut Child) -> Errno {
    let limit = Some(ADOPTION_WAIT);
    if let Err(error) = sockopt::set_socket_timeout(channel, sockopt::Timeout::Send, limit) {
        return error;
    }
    loop {
        let Some(first) = passing.next(IDLE_WAIT) else {
            continue;
        };
        let others = std::iter::from_fn(|| passing.next(Duration::ZERO));
        let batch: Vec<_> = std::iter::once(first)
            .chain(others.take(BATCH_MAX - 1))
            .collect();
        let has_ended = || status(child, ADOPTION_WAIT).is_some();
        if let Err(error) = pass_batch(channel, batch, ADOPTION_WAIT, has_ended) {
            return error;
        }
    }
}

/// Passes connections on. Those that the new process refuses go back to the server. Without a reply
/// within `limit`, all belong to the new process, unless it `has_ended`.
fn pass_batch(
    channel: &OwnedFd,
    batch: Vec<PassedConnection>,
    limit: Duration,
    has_ended: impl FnOnce() -> bool,
) -> rustix::io::Result<()> {
    let mut message = CONNECTIONS.to_vec();
    let mut sockets = Vec::new();
    for (socket, facts) in batch.iter().filter_map(|one| one.socket().zip(one.facts())) {
        sockets.push(socket);
        message.extend_from_slice(to_line(facts).as_bytes());
    }
    // If this fails, nothing was sent.
    send(channel, &message, &sockets)?;
    let received = receive_within(channel, limit).map(|(reply, _)| reply);
    let error = match &received {
        Ok(reply) => match reply.strip_prefix(SERVED) {
            Some(served) => {
                end_batch(batch, served);
                return Ok(());
            }
            None => Errno::PIPE, // It has closed its end of the connection.
        },
        Err(error) => *error,
    };
    // It may serve the connections at any time, and two processes must not read one socket.
    if error == Errno::AGAIN || !has_ended() {
        batch.into_iter().for_each(PassedConnection::passed);
    }
    Err(error)
}

/// `served`: a byte for each connection of the batch.
fn end_batch(batch: Vec<PassedConnection>, served: &[u8]) {
    let is_served = |at: usize| served.get(at) == Some(&b'1');
    tracing::debug!(
        connections = batch.len(),
        served = (0..batch.len()).filter(|&at| is_served(at)).count(),
        "connections passed on"
    );
    for (at, connection) in batch.into_iter().enumerate() {
        match is_served(at) {
            true => connection.passed(),
            false => drop(connection),
        }
    }
}

/// Adopts the connections of the old process, until it has ended.
pub(super) fn take_over(channel: &OwnedFd, server: &Handle) {
    let mut adopted = 0_usize;
    let mut serve = || -> Option<()> {
        let (message, sockets) = receive_within(channel, Duration::MAX).ok()?;
        if message.is_empty() {
            return None; // It has ended.
        }
        let mut reply = SERVED.to_vec();
        // Without a reply, the old process would give the connections up, so it always gets one.
        // There are fewer sockets than facts if this process has no descriptor left.
        let facts = facts(&message).filter(|facts| facts.len() == sockets.len());
        for (socket, facts) in sockets.into_iter().zip(facts.unwrap_or_default()) {
            let is_served = server.take_over(socket, facts);
            adopted += usize::from(is_served);
            reply.push(if is_served { b'1' } else { b'0' });
        }
        send(channel, &reply, NO_SOCKETS).ok()
    };
    while serve().is_some() {}
    tracing::info!(
        connections = adopted,
        "connections of the earlier process adopted"
    );
}

/// The connections of a message. `None` if it is malformed.
fn facts(message: &[u8]) -> Option<Vec<ConnectionFacts>> {
    let lines = std::str::from_utf8(message.strip_prefix(CONNECTIONS)?).ok()?;
    lines.lines().map(from_line).collect()
}

fn to_line(facts: ConnectionFacts) -> String {
    let client = facts.client.map(|client| client.to_string());
    let client = client.as_deref().unwrap_or("-");
    format!("{} {client}\n", facts.deadline_ms)
}

/// `None` if the line is malformed.
fn from_line(line: &str) -> Option<ConnectionFacts> {
    let (deadline_ms, client) = line.split_once(' ')?;
    Some(ConnectionFacts {
        client: match client {
            "-" => None,
            client => Some(client.parse().ok()?),
        },
        deadline_ms: deadline_ms.parse().ok()?,
    })
}

#[cfg(test)]
mod tests;
