//! The handshakes of a worker, and what its TLS connections share.

use crate::connections::ConnId;
use crate::engine::connection::tls_connection::{InProgress, SessionMemory};
use crate::log::EntryWindow;
use crate::tls::TlsConfig;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// The most handshakes that a worker continues in one event-loop iteration: about 0.5 ms.
pub(in crate::engine) const HANDSHAKES_PER_ITERATION: u32 = 4;

/// Which connections of a server begin with a handshake, and how.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    pub(crate) config: TlsConfig,
    /// For each listener, in the order of `Engine::listen`, whether its connections use TLS.
    pub(crate) listeners: Vec<bool>,
}

/// The handshakes of one worker.
#[derive(Debug, Default)]
pub(in crate::engine) struct HandshakeQueue {
    pub(in crate::engine) in_progress: Rc<InProgress>,
    /// Those in progress, oldest first. May contain some that have ended.
    pub(in crate::engine) oldest_first: RefCell<VecDeque<ConnId>>,
    /// Those that have received bytes and wait for their turn.
    pub(in crate::engine) waiting: RefCell<VecDeque<ConnId>>,
    /// A task continues those in `waiting`.
    pub(in crate::engine) has_task: Cell<bool>,
    /// Limits the log entries of clients whose certificates are refused.
    pub(in crate::engine) refusals: Cell<EntryWindow>,
    /// The last iteration in which a handshake was continued, and their number.
    pub(in crate::engine) continued: Cell<(u64, u32)>,
}

impl HandshakeQueue {
    /// Whether one more handshake may be continued in this iteration, which this call counts.
    pub(in crate::engine) fn may_continue(&self, iteration: u64) -> bool {
        let (last, count) = self.continued.get();
        let count = if last == iteration { count } else { 0 };
        let may = count < HANDSHAKES_PER_ITERATION && self.waiting.borrow().is_empty();
        if may {
            self.continued.set((iteration, count + 1));
        }
        may
    }
}

/// What the TLS connections of one worker share.
#[derive(Default)]
pub(in crate::engine) struct WorkerTls {
    pub(in crate::engine) handshakes: HandshakeQueue,
    pub(in crate::engine) memory: SessionMemory,
    /// The requirements for client certificates by which the connections were last looked at.
    pub(in crate::engine) client_generation: Cell<u64>,
    /// Where plaintext is in a block of records that is being processed.
    pub(in crate::engine) plaintext_ranges: Cell<Vec<Range<usize>>>,
}

impl WorkerTls {
    pub(in crate::engine) fn new() -> WorkerTls {
        WorkerTls::default()
    }
}
