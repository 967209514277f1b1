//! A window for what the peer may send (RFC 9113 §5.2).
//!
//! What was received is held until it is given back. What may still come and what is held are
//! together the target, but for what is not worth a frame yet.

/// So many bytes are worth a frame, however large the window is.
const WORTH_BYTES: i64 = 1 << 20;

/// A window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// What the peer may send before it hears of more.
    left: i64,
    /// Received, and not given back.
    held: i64,
    target: i64,
}

impl Window {
    pub(super) fn new(bytes: u32) -> Window {
        Window {
            left: i64::from(bytes),
            held: 0,
            target: i64::from(bytes),
        }
    }

    /// Counts received bytes. Returns whether they were permitted.
    pub(super) fn receive(&mut self, bytes: usize) -> bool {
        self.left -= bytes as i64;
        self.held += bytes as i64;
        self.left >= 0
    }

    /// Received bytes are no longer held.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.held -= bytes as i64;
    }

    pub(super) fn target(&self) -> i64 {
        self.target
    }

    /// Changes the target.
    pub(super) fn grow(&mut self, bytes: i64) {
        self.target += bytes;
    }

    /// Whether what could be announced is worth a frame: half of what is not held, so that the
    /// peer never waits for bytes that are free.
    pub(super) fn is_due(&self) -> bool {
        let usable = self.target - self.held;
        self.free() > 0 && self.free() >= WORTH_BYTES.min(usable / 2)
    }

    /// What could be announced; negative after the target has become less.
    pub(super) fn free(&self) -> i64 {
        self.target - self.held - self.left
    }

    /// What to announce now; `None` if that is not worth a frame.
    pub(super) fn announce(&mut self) -> Option<u32> {
        if !self.is_due() {
            return None;
        }
        let free = self.free();
        self.left += free;
        Some(free as u32)
    }
}
