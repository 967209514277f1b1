//! Kinds of what is counted apart: why connections ended, which limit was hit. Must not know how
//! figures are written.

use super::cell::Counter;
use std::fmt;
use std::marker::PhantomData;

/// A label with a small fixed set of values.
pub trait Kind: Copy + PartialEq + fmt::Debug + 'static {
    /// All values, each once.
    const ALL: &'static [Self];

    /// As it is told.
    fn name(self) -> &'static str;
}

/// A count for each value of `K`.
pub struct CountBy<K> {
    counts: Box<[Counter]>,
    kind: PhantomData<K>,
}

impl<K: Kind> Default for CountBy<K> {
    fn default() -> Self {
        CountBy {
            counts: K::ALL.iter().map(|_| Counter::default()).collect(),
            kind: PhantomData,
        }
    }
}

impl<K: Kind> CountBy<K> {
    #[inline]
    pub(crate) fn count(&self, kind: K) {
        if let Some(index) = K::ALL.iter().position(|&all| all == kind) {
            self.counts[index].add(1);
        }
    }

    /// What was counted so far, of all kinds.
    pub fn get(&self) -> u64 {
        self.counts.iter().map(Counter::get).sum()
    }

    /// What was counted so far, by kind.
    pub fn each(&self) -> impl Iterator<Item = (K, u64)> {
        let counts = self.counts.iter().map(Counter::get);
        K::ALL.iter().copied().zip(counts)
    }

    /// What was counted so far, of one kind.
    pub fn of(&self, kind: K) -> u64 {
        self.each()
            .filter(|&(all, _)| all == kind)
            .map(|(_, n)| n)
            .sum()
    }
}

impl<K: Kind> fmt::Debug for CountBy<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.each()).finish()
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its last answer was sent, and closing was due: the client or a handler asked for it, or the
    /// request was refused.
    Answered,
    /// The client ended it, owed nothing.
    Client,
    /// It was silent for as long as it may be between two requests.
    Idle,
    /// A limit on time ended it. See [`TimeLimit`].
    TimedOut,
    /// The client or the network broke it off.
    Broken,
    /// A handler's answer could not be finished.
    Cut,
    /// There were too many connections.
    Refused,
    /// The server ends, and it was idle.
    Drained,
    /// The server ended before it was done.
    Stopped,
    /// There was no memory, or no place, for what it needed.
    Exhausted,
    /// There were too many connections, and it had been idle for longer than others.
    Displaced,
}

impl Kind for CloseReason {
    const ALL: &'static [CloseReason] = &[
        CloseReason::Answered,
        CloseReason::Client,
        CloseReason::Idle,
        CloseReason::TimedOut,
        CloseReason::Broken,
        CloseReason::Cut,
        CloseReason::Refused,
        CloseReason::Drained,
        CloseReason::Stopped,
        CloseReason::Exhausted,
        CloseReason::Displaced,
    ];

    fn name(self) -> &'static str {
        match self {
            CloseReason::Answered => "answered",
            CloseReason::Client => "client",
            CloseReason::Idle => "idle",
            CloseReason::TimedOut => "timed_out",
            CloseReason::Broken => "broken",
            CloseReason::Cut => "cut",
            CloseReason::Refused => "refused",
            CloseReason::Drained => "drained",
            CloseReason::Stopped => "stopped",
            CloseReason::Exhausted => "exhausted",
            CloseReason::Displaced => "displaced",
        }
    }
}

/// A limit on time that a client has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// `Limits::head_timeout_ms`.
    Head,
    /// `Limits::body_timeout_ms`.
    Body,
    /// `Limits::write_timeout_ms`.
    Write,
    /// `Limits::total_timeout_ms`.
    Total,
}

impl Kind for TimeLimit {
    const ALL: &'static [TimeLimit] = &[
        TimeLimit::Head,
        TimeLimit::Body,
        TimeLimit::Write,
        TimeLimit::Total,
    ];

    fn name(self) -> &'static str {
        match self {
            TimeLimit::Head => "head",
            TimeLimit::Body => "body",
            TimeLimit::Write => "write",
            TimeLimit::Total => "total",
        }
    }
}

/// The status that a request was refused with, before a handler saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(&'static str);

impl Refusal {
    pub(crate) fn of(status: u16) -> Refusal {
        let known = Refusal::ALL.iter().copied();
        let found = known.clone().find(|known| known.0.parse() == Ok(status));
        found.or(known.last()).unwrap_or(Refusal("other"))
    }
}

impl Kind for Refusal {
    const ALL: &'static [Refusal] = &[
        Refusal("400"),
        Refusal("408"),
        Refusal("411"),
        Refusal("413"),
        Refusal("414"),
        Refusal("417"),
        Refusal("431"),
        Refusal("501"),
        Refusal("503"),
        Refusal("505"),
        Refusal("other"),
    ];

    fn name(self) -> &'static str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_for_itself() {
        let endings = CountBy::<CloseReason>::default();
        for (index, &ending) in CloseReason::ALL.iter().enumerate() {
            (0..=index).for_each(|_| endings.count(ending));
        }
        for (index, &ending) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(endings.of(ending), index as u64 + 1, "{}", ending.name());
        }
        assert_eq!(endings.get(), 66);
    }

    #[test]
    fn a_refusal_of_no_known_status_is_another() {
        assert_eq!(Refusal::of(431).name(), "431");
        assert_eq!(Refusal::of(418).name(), "other");
    }
}
