//! A connection of HTTP/2: any bytes give the same events and the same answers, however they are
//! split; what the machine answers is valid for its client, and no window is exceeded on either
//! side.
//!
//! An input is what a client sends and what the caller does meanwhile, one after the other
//! (`script`), or frames as they are, between which the caller acts. Bits of the choices say which
//! of both sides knows other protocols, and whether the caller lets bodies wait.
//!
//! Modules, lowest first: `input` · `frames` · `heads` · `blocks` · `stream` · `peer` · `server` ·
//! `client` · `script`.

mod blocks;
mod client;
mod frames;
mod heads;
mod input;
mod peer;
mod script;
mod server;
mod stream;

use crate::Choices;
use script::{OFFERS, Script};
use server::Server;

/// What is longer is received in larger pieces, and only its start byte by byte.
const SHORT_BYTES: usize = 3_000;

/// Checks one input.
///
/// # Panics
/// If what the machine promises does not hold.
pub fn check_input(input: &[u8]) {
    let Some((choices, bytes)) = Choices::take(input) else {
        return;
    };
    let limits = choices.limits();
    let (script, first) = Script::perform(choices, bytes);
    let length = script.bytes.len();
    let step = length.div_ceil(SHORT_BYTES).max(1);
    let some = choices
        .splits(length / step)
        .iter()
        .map(|at| at * step)
        .collect();
    let each = (1..length.min(SHORT_BYTES)).collect();
    for splits in [&Vec::new(), &some, &each] {
        let mut again = replay(
            &script,
            splits,
            Server::new(limits, choices.has(OFFERS), false),
        );
        again.check();
        assert_eq!(again.log, first.log);
        assert!(again.out == first.out, "other answers");
    }
}

/// Passes what a client has sent in pieces that end at the offsets `splits`, and where the caller
/// acts.
fn replay(script: &Script, splits: &[usize], mut server: Server) -> Server {
    let mut splits = splits.iter().copied().peekable();
    for (offset, action) in &script.actions {
        while let Some(split) = splits.next_if(|split| split < offset) {
            server.receive(&script.bytes[..split]);
        }
        server.receive(&script.bytes[..*offset]);
        server.act(*action);
    }
    let acted = script.actions.last().map_or(0, |(offset, _)| *offset);
    for split in splits.filter(|split| *split > acted) {
        server.receive(&script.bytes[..split]);
    }
    server.receive(&script.bytes);
    server
}

/// What the events of an input are, in words, for the test of what the seeds reach.
#[cfg(test)]
pub(crate) fn events(input: &[u8]) -> Vec<String> {
    let Some((choices, bytes)) = Choices::take(input) else {
        return Vec::new();
    };
    let (_, server) = Script::perform(choices, bytes);
    server
        .log
        .iter()
        .map(|entry| format!("{entry:?}"))
        .collect()
}
