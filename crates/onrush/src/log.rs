//! The access log: one event a request, under the target `onrush::access`. What prints it, and in
//! which form, is the subscriber's business. Must not know about connections.

use crate::panic_guard;
use std::net::SocketAddr;
use std::time::Instant;

/// Whether requests are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No event is made.
    #[default]
    Off,
    /// One `tracing` event at level INFO for each request that was answered.
    On,
}

/// What is remembered of a request until it is answered.
#[derive(Debug)]
pub(crate) struct Entry {
    method: String,
    target: String,
    peer: Option<SocketAddr>,
    begun: Instant,
}

impl Entry {
    pub(crate) fn new(method: &str, target: &[u8], peer: Option<SocketAddr>) -> Box<Entry> {
        Box::new(Entry {
            method: method.to_owned(),
            // The parser lets no control character into a target.
            target: String::from_utf8_lossy(target).into_owned(),
            peer,
            begun: Instant::now(),
        })
    }

    /// The answer has been handed to the kernel, as far as it went.
    pub(crate) fn finish(self, status: u16, body_bytes: Option<u64>) {
        panic_guard::log(|| {
            tracing::info!(
                target: "onrush::access",
                method = %self.method,
                target = %self.target,
                peer = self.peer.map(tracing::field::display),
                status,
                body_bytes,
                duration_us = self.begun.elapsed().as_micros() as u64,
            )
        });
    }
}
