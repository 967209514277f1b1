//! The limits of a server, as programs set them. The parser and the engine have a type of their own
//! ([`onrush_proto::limits::Limits`]), with milliseconds in 32 bits: it is small and copied for
//! each worker. This module converts to it when a server starts and when its settings change, so a
//! request costs nothing for it.
//!
//! [`Limits`] is `#[non_exhaustive]`, so a limit can be added without breaking programs. That rules
//! out a literal with `..Limits::default()`. Each limit has a setter instead: a chain of them is
//! one expression and reads like the settings of [`Server`](crate::Server). The fields are public
//! as well, for reading and for assignment.

use onrush_proto::limits::Limits as EngineLimits;
use std::time::Duration;

/// Limits on the memory, parsing work and waiting time that a client can cause.
///
/// Sizes are in bytes. A time of [`Duration::ZERO`] disables that limit, except where the field
/// says otherwise, and so does one of more than 49 days, such as [`Duration::MAX`]. Times count in
/// milliseconds; a fraction is rounded up.
///
/// # Examples
/// ```
/// use onrush::Limits;
/// use std::time::Duration;
///
/// let mut limits = Limits::default()
///     .body_bytes_max(1 << 20)
///     .idle_timeout(Duration::from_secs(10))
///     .total_timeout(Duration::ZERO); // No limit.
/// assert_eq!(limits.body_bytes_max, 1 << 20);
/// assert_eq!(limits.head_timeout, Duration::from_secs(15));
/// limits.field_count_max = 50;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Request line and field lines together; beyond it 431 (414 if the target has not ended).
    /// Default: 32 KiB, four times what browsers and proxies usually send, cookies included.
    pub head_bytes_max: usize,
    /// Field lines in a head; beyond it 431. Default: 100, as in other servers. At most
    /// [`Limits::FIELDS_CEILING`].
    pub field_count_max: usize,
    /// Request target; beyond it 414. Default: 8 KiB. RFC 9112 §3 recommends at least 8000 bytes.
    pub target_bytes_max: usize,
    /// Request body after decoding; beyond it 413. Default: 64 MiB, so that a handler that keeps
    /// bodies in memory has a limit. `u64::MAX` disables it, for handlers that stream.
    pub body_bytes_max: u64,
    /// Chunk extensions in all chunks of one body; beyond it 400. Default: 4 KiB; hardly a client
    /// sends any.
    pub chunk_extension_bytes_max: usize,
    /// Trailer section of one body; beyond it 431. Default: 8 KiB.
    pub trailer_bytes_max: usize,
    /// Responses that may wait for one send. Further requests stay unread until it has finished.
    /// Default: 64, enough for one send to be large.
    pub pipelined_requests_max: usize,
    /// Time from accepting a TLS connection to the end of its handshake; beyond it the connection
    /// ends. Default: 15 s, for clients far away that lose packets.
    pub handshake_timeout: Duration,
    /// Time from the first byte of a request to the end of its head; beyond it 408. Default: 15 s.
    /// A head is a few packets; a client that sends it byte by byte occupies a connection.
    pub head_timeout: Duration,
    /// Longest pause between two pieces of a request body; beyond it 408. Default: 60 s, for mobile
    /// clients that lose their network for a while.
    pub body_timeout: Duration,
    /// Longest pause in which the client accepts no byte of a response; beyond it the connection
    /// ends. Default: 60 s, as for bodies.
    pub write_timeout: Duration,
    /// Minimum average rate in bytes per second at which a client must send a request body or
    /// accept a response. The average covers [`Limits::rate_window`] of waiting for the client.
    /// Below it: 408 if no response has begun, otherwise a connection reset. 0 (the default)
    /// disables the limit, because clients of streaming applications may send little. The object
    /// server sets 100.
    pub rate_bytes_per_s_min: u32,
    /// Waiting time over which the rate of a client is averaged. A request whose total waiting time
    /// is shorter is not checked. Default: 30 s, longer than the pauses of a usual network. Zero is
    /// a millisecond; [`Limits::rate_bytes_per_s_min`] disables the check.
    pub rate_window: Duration,
    /// Keep-alive: longest idle time between two requests; beyond it the connection ends. Default:
    /// 75 s, longer than the 60 s for which many proxies keep connections, so that the proxy
    /// closes first.
    pub idle_timeout: Duration,
    /// Time from the head of a request to the end of its response; beyond it the connection ends.
    /// Default: one hour. Servers of large files need more.
    pub total_timeout: Duration,
    /// How long a lingering close reads and discards, so that the client can read the last
    /// response. Default: 2 s, several round trips. Zero is a millisecond: without a limit, a
    /// client could keep a connection that has ended.
    pub linger_timeout: Duration,
}

/// A setter for each field.
macro_rules! setters {
    ($($field:ident: $type:ty,)*) => {
        impl Limits {
            $(
                #[doc = concat!("Sets [`Limits::", stringify!($field), "`](#structfield.",
                    stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Limits {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

setters! {
    head_bytes_max: usize,
    field_count_max: usize,
    target_bytes_max: usize,
    body_bytes_max: u64,
    chunk_extension_bytes_max: usize,
    trailer_bytes_max: usize,
    pipelined_requests_max: usize,
    handshake_timeout: Duration,
    head_timeout: Duration,
    body_timeout: Duration,
    write_timeout: Duration,
    rate_bytes_per_s_min: u32,
    rate_window: Duration,
    idle_timeout: Duration,
    total_timeout: Duration,
    linger_timeout: Duration,
}

impl Limits {
    /// The upper limit on `field_count_max`: the parser's table lives on the stack.
    pub const FIELDS_CEILING: usize = EngineLimits::FIELDS_CEILING;

    /// The limits as the parser and the engine use them.
    pub(crate) fn to_engine(self) -> EngineLimits {
        EngineLimits {
            head_bytes_max: self.head_bytes_max,
            field_count_max: self.field_count_max,
            target_bytes_max: self.target_bytes_max,
            body_bytes_max: self.body_bytes_max,
            chunk_extension_bytes_max: self.chunk_extension_bytes_max,
            trailer_bytes_max: self.trailer_bytes_max,
            pipelined_requests_max: self.pipelined_requests_max,
            handshake_timeout_ms: timeout_ms(self.handshake_timeout),
            head_timeout_ms: timeout_ms(self.head_timeout),
            body_timeout_ms: timeout_ms(self.body_timeout),
            write_timeout_ms: timeout_ms(self.write_timeout),
            rate_bytes_per_s_min: self.rate_bytes_per_s_min,
            rate_window_ms: bounded_ms(self.rate_window),
            idle_timeout_ms: timeout_ms(self.idle_timeout),
            total_timeout_ms: timeout_ms(self.total_timeout),
            linger_timeout_ms: bounded_ms(self.linger_timeout),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        // The one list of defaults is that of the parser, whose tests and fuzz targets use it.
        let engine = EngineLimits::default();
        let time = |ms: u32| Duration::from_millis(ms.into());
        Limits {
            head_bytes_max: engine.head_bytes_max,
            field_count_max: engine.field_count_max,
            target_bytes_max: engine.target_bytes_max,
            body_bytes_max: engine.body_bytes_max,
            chunk_extension_bytes_max: engine.chunk_extension_bytes_max,
            trailer_bytes_max: engine.trailer_bytes_max,
            pipelined_requests_max: engine.pipelined_requests_max,
            handshake_timeout: time(engine.handshake_timeout_ms),
            head_timeout: time(engine.head_timeout_ms),
            body_timeout: time(engine.body_timeout_ms),
            write_timeout: time(engine.write_timeout_ms),
            rate_bytes_per_s_min: engine.rate_bytes_per_s_min,
            rate_window: time(engine.rate_window_ms),
            idle_timeout: time(engine.idle_timeout_ms),
            total_timeout: time(engine.total_timeout_ms),
            linger_timeout: time(engine.linger_timeout_ms),
        }
    }
}

/// Milliseconds, rounded up, so that no time that is not zero becomes zero. `None` if they do not
/// fit.
fn whole_ms(time: Duration) -> Option<u32> {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).ok()
}

/// 0, which disables a limit, stands for a time that does not fit.
fn timeout_ms(time: Duration) -> u32 {
    whole_ms(time).unwrap_or(0)
}

/// A time that cannot be disabled.
fn bounded_ms(time: Duration) -> u32 {
    whole_ms(time).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_engine() {
        assert_eq!(Limits::default().to_engine(), EngineLimits::default());
    }

    #[test]
    fn the_documented_defaults_are_in_use() {
        let limits = Limits::default();
        let sizes = (limits.head_bytes_max, limits.field_count_max);
        assert_eq!(sizes, (32 << 10, 100));
        let sizes = (limits.target_bytes_max, limits.body_bytes_max);
        assert_eq!(sizes, (8 << 10, 64 << 20));
        let sizes = (limits.chunk_extension_bytes_max, limits.trailer_bytes_max);
        assert_eq!(sizes, (4 << 10, 8 << 10));
        let counts = (limits.pipelined_requests_max, limits.rate_bytes_per_s_min);
        assert_eq!(counts, (64, 0));
        let times = [
            limits.handshake_timeout,
            limits.head_timeout,
            limits.body_timeout,
            limits.write_timeout,
            limits.rate_window,
            limits.idle_timeout,
            limits.total_timeout,
            limits.linger_timeout,
        ];
        assert_eq!(
            times.map(|time| time.as_secs()),
            [15, 15, 60, 60, 30, 75, 3600, 2]
        );
    }

    #[test]
    fn a_time_is_rounded_up_and_one_too_long_is_no_limit() {
        let idle_ms = |time| {
            Limits::default()
                .idle_timeout(time)
                .to_engine()
                .idle_timeout_ms
        };
        assert_eq!(idle_ms(Duration::ZERO), 0);
        assert_eq!(idle_ms(Duration::from_nanos(1)), 1);
        assert_eq!(idle_ms(Duration::from_micros(1_001)), 2);
        assert_eq!(idle_ms(Duration::from_millis(u32::MAX.into())), u32::MAX);
        assert_eq!(idle_ms(Duration::from_millis(1 << 32)), 0);
        assert_eq!(idle_ms(Duration::MAX), 0);
    }

    #[test]
    fn a_linger_and_a_rate_window_cannot_be_disabled() {
        for (time, ms) in [(Duration::ZERO, 1), (Duration::MAX, u32::MAX)] {
            let limits = Limits::default().linger_timeout(time).rate_window(time);
            let engine = limits.to_engine();
            assert_eq!((engine.linger_timeout_ms, engine.rate_window_ms), (ms, ms));
        }
    }
}
