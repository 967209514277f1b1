//! The limits of a connection. Other modules enforce them.

/// Limits on the memory, parsing work and waiting time that a peer can cause.
///
/// Sizes are in bytes, times in milliseconds. A time of `0` disables that limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Request line and field lines together; beyond it 431 (414 if the target has not ended).
    pub head_bytes_max: usize,
    /// Field lines in a head; beyond it 431. At most [`Limits::FIELDS_CEILING`].
    pub field_count_max: usize,
    /// Request target; beyond it 414.
    pub target_bytes_max: usize,
    /// Request body after decoding; beyond it 413.
    pub body_bytes_max: u64,
    /// Chunk extensions in all chunks of one body; beyond it 400.
    pub chunk_extension_bytes_max: usize,
    /// Trailer section of one body; beyond it 431.
    pub trailer_bytes_max: usize,
    /// Responses that may wait for one send. Further requests stay unread until it has finished.
    pub pipelined_requests_max: usize,
    /// Time from accepting a TLS connection to the end of its handshake; beyond it the connection
    /// ends.
    pub handshake_timeout_ms: u32,
    /// Time from the first byte of a request to the end of its head; beyond it 408.
    pub head_timeout_ms: u32,
    /// Longest pause between two pieces of a request body; beyond it 408.
    pub body_timeout_ms: u32,
    /// Longest pause in which the peer accepts no byte of a response; beyond it the connection
    /// ends.
    pub write_timeout_ms: u32,
    /// Minimum average rate in bytes per second at which a peer must send a request body or accept
    /// a response. The average covers [`Limits::rate_window_ms`] of waiting for the peer. Below
    /// it: 408 if no response has begun, otherwise a connection reset. 0 (the default) disables
    /// the limit, because clients of streaming applications may send little. The object server
    /// sets 100.
    pub rate_bytes_per_s_min: u32,
    /// Waiting time over which the rate of a peer is averaged. A request whose total waiting time
    /// is shorter is not checked.
    pub rate_window_ms: u32,
    /// Keep-alive: longest idle time between two requests; beyond it the connection ends.
    pub idle_timeout_ms: u32,
    /// Time from the head of a request to the end of its response (default: one hour); beyond it
    /// the connection ends. Servers of large files need more.
    pub total_timeout_ms: u32,
    /// How long a lingering close reads and discards, so that the peer can read the last response.
    pub linger_timeout_ms: u32,
}

impl Limits {
    /// The upper limit on `field_count_max`: the parser's table lives on the stack.
    pub const FIELDS_CEILING: usize = 256;
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes_max: 32 * 1024,
            field_count_max: 100,
            target_bytes_max: 8 * 1024,
            body_bytes_max: 64 * 1024 * 1024,
            chunk_extension_bytes_max: 4 * 1024,
            trailer_bytes_max: 8 * 1024,
            pipelined_requests_max: 64,
            handshake_timeout_ms: 15_000,
            head_timeout_ms: 15_000,
            body_timeout_ms: 60_000,
            write_timeout_ms: 60_000,
            rate_bytes_per_s_min: 0,
            rate_window_ms: 30_000,
            idle_timeout_ms: 75_000,
            total_timeout_ms: 3_600_000,
            linger_timeout_ms: 2_000,
        }
    }
}
