//! Labels of counters: why connections ended, which limit was reached, why requests were rejected.

use super::cell::Counter;
use crate::log::Outcome;
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

/// Defines labels with fixed values: each with its documentation and its name in the metrics.
macro_rules! kinds {
    ($(#[$about:meta])* pub enum $kind:ident {
        $($(#[$what:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $kind {
            $($(#[$what])* $variant,)*
        }

        impl Kind for $kind {
            const ALL: &'static [$kind] = &[$($kind::$variant),*];

            fn name(self) -> &'static str {
                match self {
                    $($kind::$variant => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Why a connection ended.
    ///
    /// # Examples
    /// ```
    /// # use onrush::{Limits, Request, Response, sim::Simulation};
    /// # use std::time::Duration;
    /// # async fn hello(_: Request) -> Response { Response::text("hello") }
    /// use onrush::metrics::{CloseReason, Kind};
    ///
    /// let limits = Limits::default().idle_timeout(Duration::from_secs(1));
    /// let mut sim = Simulation::new(1, &hello, limits);
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// sim.advance(Duration::from_secs(2));
    /// assert_eq!(sim.counters().done.of(CloseReason::Idle), 1);
    /// assert_eq!(CloseReason::Idle.name(), "idle");
    /// ```
    pub enum CloseReason {
        /// The last response was sent. The client or the handler had requested the close, or the
        /// request was rejected.
        Complete = "complete",
        /// The client closed it while no response was due.
        Client = "client",
        /// No request began within `Limits::idle_timeout`, or `Limits::head_timeout` for the
        /// first one.
        Idle = "idle",
        /// The client broke a rule of HTTP/2 that concerns the connection, or exceeded one of its
        /// bounds, and was told so (GOAWAY).
        Violation = "violation",
        /// The client exceeded a time limit while a request was in progress, or one of HTTP/2. See
        /// [`TimeLimit`].
        TimedOut = "timed_out",
        /// The client or the network reset it.
        Broken = "broken",
        /// The handler could not finish its response.
        Cut = "cut",
        /// The maximum number of connections or descriptors was reached, and it was refused with
        /// 503.
        Refused = "refused",
        /// It was idle while the server shut down.
        Drained = "drained",
        /// The server ended while the connection was open.
        Stopped = "stopped",
        /// Memory or another resource that it needed was exhausted.
        Exhausted = "exhausted",
        /// The maximum number of connections or descriptors was reached, and it had been idle for
        /// the longest time; or none was idle, and its client had the most connections.
        Displaced = "displaced",
        /// It did not begin with a header of the PROXY protocol of a trusted peer. See
        /// [`ProxyRefusal`].
        NotProxied = "not_proxied",
        /// The requirements for client certificates have changed, and the client does not meet
        /// them.
        NotAdmitted = "not_admitted",
    }
}

impl CloseReason {
    /// The outcome of an exchange that had not ended when its connection closed.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            CloseReason::Complete
            | CloseReason::Client
            | CloseReason::Violation
            | CloseReason::Broken
            | CloseReason::NotProxied => Outcome::ClientGone,
            CloseReason::TimedOut | CloseReason::Idle => Outcome::TimedOut,
            CloseReason::Cut => Outcome::CutOff,
            CloseReason::Exhausted | CloseReason::Displaced | CloseReason::Refused => {
                Outcome::Evicted
            }
            CloseReason::Drained | CloseReason::Stopped | CloseReason::NotAdmitted => {
                Outcome::Stopped
            }
        }
    }
}

kinds! {
    /// A time limit that a client has exceeded.
    ///
    /// # Examples
    /// ```
    /// # use onrush::{Limits, Request, Response, sim::Simulation};
    /// # use std::time::Duration;
    /// # async fn hello(_: Request) -> Response { Response::text("hello") }
    /// use onrush::metrics::TimeLimit;
    ///
    /// let limits = Limits::default().head_timeout(Duration::from_secs(1));
    /// let mut sim = Simulation::new(1, &hello, limits);
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: exam");
    /// sim.advance(Duration::from_secs(2));
    /// assert!(client.receive()?.starts_with(b"HTTP/1.1 408 Request Timeout\r\n"));
    /// assert_eq!(sim.counters().timed_out.of(TimeLimit::Head), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub enum TimeLimit {
        /// `Limits::handshake_timeout`: a TLS handshake.
        Handshake = "handshake",
        /// `Limits::head_timeout`: the head of a request.
        Head = "head",
        /// `Limits::body_timeout`, or the minimum rate: the body of a request.
        Body = "body",
        /// `Limits::write_timeout`, or the minimum rate: the client accepts the response too
        /// slowly.
        Write = "write",
        /// `Limits::total_timeout`: the whole exchange.
        Total = "total",
    }
}

kinds! {
    /// How a TLS handshake ended.
    ///
    /// # Examples
    /// ```
    /// use onrush::metrics::{HandshakeOutcome, Kind};
    ///
    /// assert_eq!(HandshakeOutcome::Tls13Resumed.name(), "tls1.3_resumed");
    /// ```
    pub enum HandshakeOutcome {
        /// TLS 1.3 with a full handshake.
        Tls13 = "tls1.3",
        /// TLS 1.3 with a ticket of an earlier session.
        Tls13Resumed = "tls1.3_resumed",
        /// TLS 1.2 with a full handshake.
        Tls12 = "tls1.2",
        /// TLS 1.2 with a ticket of an earlier session.
        Tls12Resumed = "tls1.2_resumed",
        /// The client broke a rule, offered nothing acceptable, or went away.
        Failed = "failed",
        /// The client exceeded `Limits::handshake_timeout`, or the server shut down.
        TimedOut = "timed_out",
        /// The client sent a plain HTTP request, which received a 400.
        PlainHttp = "plain_http",
        /// There was no memory for the handshake.
        Refused = "refused",
    }
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

kinds! {
    /// Why a connection was closed that has to begin with a header of the PROXY protocol.
    ///
    /// # Examples
    /// ```
    /// use onrush::metrics::{Kind, ProxyRefusal};
    ///
    /// assert_eq!(ProxyRefusal::Untrusted.name(), "untrusted");
    /// ```
    pub enum ProxyRefusal {
        /// The peer is not trusted to say who its clients are.
        Untrusted = "untrusted",
        /// The connection began with other bytes, or ended within the header.
        Malformed = "malformed",
        /// The header was not complete within `Limits::head_timeout`.
        TimedOut = "timed_out",
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
    fn the_page_of_operators_lists_each_reason() {
        let page = include_str!("../../../../docs/operations.md");
        for reason in CloseReason::ALL {
            let listed = format!("| `{}` | ", reason.name());
            assert!(page.contains(&listed), "{listed}");
        }
    }

    #[test]
    fn refusal_with_unknown_status_counts_as_other() {
        assert_eq!(Refusal::of(431).name(), "431");
        assert_eq!(Refusal::of(418).name(), "other");
    }
}
