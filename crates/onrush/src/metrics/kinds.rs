//! Labels of counters: why connections ended, which limit was reached, why requests were rejected.

use super::cell::Counter;
use std::fmt;
use std::marker::PhantomData;

/// A label with a small fixed set of values.
///
/// # Examples
/// ```
/// use onrush::metrics::{Kind, TimeLimit};
///
/// let names: Vec<&str> = TimeLimit::ALL.iter().map(|limit| limit.name()).collect();
/// assert_eq!(names, ["handshake", "head", "body", "write", "total"]);
/// ```
pub trait Kind: Copy + PartialEq + fmt::Debug + 'static {
    /// All values, each of them once.
    const ALL: &'static [Self];

    /// The value of the label in the metrics.
    fn name(self) -> &'static str;
}

/// A counter for each value of the label `K`.
///
/// # Examples
/// ```
/// # use onrush::{Limits, Request, Response, sim::Simulation};
/// # async fn hello(_: Request) -> Response { Response::text("hello") }
/// use onrush::metrics::CloseReason;
///
/// let mut sim = Simulation::new(1, &hello, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert!(!client.receive()?.is_empty());
/// drop(client); // The client closes its connection.
/// sim.run();
/// assert_eq!(sim.counters().done.of(CloseReason::Client), 1);
/// assert_eq!(sim.counters().done.of(CloseReason::Idle), 0);
/// assert_eq!(sim.counters().done.get(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
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
        if let Some(index) = K::ALL.iter().position(|&value| value == kind) {
            self.counts[index].add(1);
        }
    }

    /// The sum for all values of the label.
    pub fn get(&self) -> u64 {
        self.counts.iter().map(Counter::get).sum()
    }

    /// The count of each value of the label.
    pub fn each(&self) -> impl Iterator<Item = (K, u64)> {
        let counts = self.counts.iter().map(Counter::get);
        K::ALL.iter().copied().zip(counts)
    }

    /// The count of `kind`.
    pub fn of(&self, kind: K) -> u64 {
        self.each()
            .filter(|&(value, _)| value == kind)
            .map(|(_, count)| count)
            .sum()
    }
}

impl<K: Kind> fmt::Debug for CountBy<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.each()).finish()
    }
}

/// Why a connection ended.
///
/// # Examples
/// ```
/// # use onrush::{Limits, Request, Response, sim::Simulation};
/// # async fn hello(_: Request) -> Response { Response::text("hello") }
/// use onrush::metrics::{CloseReason, Kind};
///
/// let limits = Limits { idle_timeout_ms: 1000, ..Limits::default() };
/// let mut sim = Simulation::new(1, &hello, limits);
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// sim.advance(2000);
/// assert_eq!(sim.counters().done.of(CloseReason::Idle), 1);
/// assert_eq!(CloseReason::Idle.name(), "idle");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The last response was sent. The client or the handler had requested the close, or the
    /// request was rejected.
    Complete,
    /// The client closed it while no response was due.
    Client,
    /// No request began within `Limits::idle_timeout_ms`, or `Limits::head_timeout_ms` for the
    /// first one.
    Idle,
    /// The client exceeded a time limit while a request was in progress. See [`TimeLimit`].
    TimedOut,
    /// The client or the network reset it.
    Broken,
    /// The handler could not finish its response.
    Cut,
    /// The maximum number of connections or descriptors was reached, and it was refused with 503.
    Refused,
    /// It was idle while the server shut down.
    Drained,
    /// The server ended while the connection was open.
    Stopped,
    /// Memory or another resource that it needed was exhausted.
    Exhausted,
    /// The maximum number of connections or descriptors was reached, and it had been idle for the
    /// longest time.
    Displaced,
    /// It did not begin with a header of the PROXY protocol of a trusted peer. See
    /// [`ProxyRefusal`].
    NotProxied,
    /// The requirements for client certificates have changed, and the client does not meet them.
    NotAdmitted,
}

impl Kind for CloseReason {
    const ALL: &'static [CloseReason] = &[
        CloseReason::Complete,
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
        CloseReason::NotProxied,
        CloseReason::NotAdmitted,
    ];

    fn name(self) -> &'static str {
        match self {
            CloseReason::Complete => "complete",
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
            CloseReason::NotProxied => "not_proxied",
            CloseReason::NotAdmitted => "not_admitted",
        }
    }
}

/// A time limit that a client has exceeded.
///
/// # Examples
/// ```
/// # use onrush::{Limits, Request, Response, sim::Simulation};
/// # async fn hello(_: Request) -> Response { Response::text("hello") }
/// use onrush::metrics::TimeLimit;
///
/// let limits = Limits { head_timeout_ms: 1000, ..Limits::default() };
/// let mut sim = Simulation::new(1, &hello, limits);
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: exam");
/// sim.advance(2000);
/// assert!(client.receive()?.starts_with(b"HTTP/1.1 408 Request Timeout\r\n"));
/// assert_eq!(sim.counters().timed_out.of(TimeLimit::Head), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// `Limits::handshake_timeout_ms`: a TLS handshake.
    Handshake,
    /// `Limits::head_timeout_ms`: the head of a request.
    Head,
    /// `Limits::body_timeout_ms`, or the minimum rate: the body of a request.
    Body,
    /// `Limits::write_timeout_ms`, or the minimum rate: the client accepts the response too slowly.
    Write,
    /// `Limits::total_timeout_ms`: the whole exchange.
    Total,
}

impl Kind for TimeLimit {
    const ALL: &'static [TimeLimit] = &[
        TimeLimit::Handshake,
        TimeLimit::Head,
        TimeLimit::Body,
        TimeLimit::Write,
        TimeLimit::Total,
    ];

    fn name(self) -> &'static str {
        match self {
            TimeLimit::Handshake => "handshake",
            TimeLimit::Head => "head",
            TimeLimit::Body => "body",
            TimeLimit::Write => "write",
            TimeLimit::Total => "total",
        }
    }
}

/// How a TLS handshake ended.
///
/// # Examples
/// ```
/// use onrush::metrics::{HandshakeOutcome, Kind};
///
/// assert_eq!(HandshakeOutcome::Tls13Resumed.name(), "tls1.3_resumed");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeOutcome {
    /// TLS 1.3 with a full handshake.
    Tls13,
    /// TLS 1.3 with a ticket of an earlier session.
    Tls13Resumed,
    /// TLS 1.2 with a full handshake.
    Tls12,
    /// TLS 1.2 with a ticket of an earlier session.
    Tls12Resumed,
    /// The client broke a rule, offered nothing acceptable, or went away.
    Failed,
    /// The client exceeded `Limits::handshake_timeout_ms`, or the server shut down.
    TimedOut,
    /// The client sent a plain HTTP request, which received a 400.
    PlainHttp,
    /// There was no memory for the handshake.
    Refused,
}

#[cfg(feature = "tls")]
impl HandshakeOutcome {
    /// The outcome of a complete handshake.
    pub(crate) fn of(info: &crate::tls::TlsInfo) -> HandshakeOutcome {
        match (info.version(), info.is_resumed()) {
            ("TLSv1.3", false) => HandshakeOutcome::Tls13,
            ("TLSv1.3", true) => HandshakeOutcome::Tls13Resumed,
            (_, false) => HandshakeOutcome::Tls12,
            (_, true) => HandshakeOutcome::Tls12Resumed,
        }
    }
}

impl Kind for HandshakeOutcome {
    const ALL: &'static [HandshakeOutcome] = &[
        HandshakeOutcome::Tls13,
        HandshakeOutcome::Tls13Resumed,
        HandshakeOutcome::Tls12,
        HandshakeOutcome::Tls12Resumed,
        HandshakeOutcome::Failed,
        HandshakeOutcome::TimedOut,
        HandshakeOutcome::PlainHttp,
        HandshakeOutcome::Refused,
    ];

    fn name(self) -> &'static str {
        match self {
            HandshakeOutcome::Tls13 => "tls1.3",
            HandshakeOutcome::Tls13Resumed => "tls1.3_resumed",
            HandshakeOutcome::Tls12 => "tls1.2",
            HandshakeOutcome::Tls12Resumed => "tls1.2_resumed",
            HandshakeOutcome::Failed => "failed",
            HandshakeOutcome::TimedOut => "timed_out",
            HandshakeOutcome::PlainHttp => "plain_http",
            HandshakeOutcome::Refused => "refused",
        }
    }
}

/// Why a connection was closed that has to begin with a header of the PROXY protocol.
///
/// # Examples
/// ```
/// use onrush::metrics::{Kind, ProxyRefusal};
///
/// assert_eq!(ProxyRefusal::Untrusted.name(), "untrusted");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyRefusal {
    /// The peer is not trusted to say who its clients are.
    Untrusted,
    /// The connection began with other bytes, or ended within the header.
    Malformed,
    /// The header was not complete within `Limits::head_timeout_ms`.
    TimedOut,
}

impl Kind for ProxyRefusal {
    const ALL: &'static [ProxyRefusal] = &[
        ProxyRefusal::Untrusted,
        ProxyRefusal::Malformed,
        ProxyRefusal::TimedOut,
    ];

    fn name(self) -> &'static str {
        match self {
            ProxyRefusal::Untrusted => "untrusted",
            ProxyRefusal::Malformed => "malformed",
            ProxyRefusal::TimedOut => "timed_out",
        }
    }
}

/// The status with which a request was rejected before it reached a handler.
///
/// # Examples
/// ```
/// # use onrush::{Limits, Request, Response, sim::Simulation};
/// # async fn hello(_: Request) -> Response { Response::text("hello") }
/// use onrush::metrics::Kind;
///
/// let mut sim = Simulation::new(1, &hello, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\n\r\n"); // Without `Host` (RFC 9112 §3.2).
/// let rejected = sim.counters().rejected.each().find(|(_, count)| *count > 0);
/// assert_eq!(rejected.map(|(refusal, count)| (refusal.name(), count)), Some(("400", 1)));
/// ```
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
    fn each_kind_has_its_own_count() {
        let endings = CountBy::<CloseReason>::default();
        for (index, &ending) in CloseReason::ALL.iter().enumerate() {
            (0..=index).for_each(|_| endings.count(ending));
        }
        for (index, &ending) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(endings.of(ending), index as u64 + 1, "{}", ending.name());
        }
        let kinds = CloseReason::ALL.len() as u64;
        assert_eq!(endings.get(), kinds * (kinds + 1) / 2);
    }

    #[test]
    fn refusal_with_unknown_status_counts_as_other() {
        assert_eq!(Refusal::of(431).name(), "431");
        assert_eq!(Refusal::of(418).name(), "other");
    }
}
