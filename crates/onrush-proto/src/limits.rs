//! Every bound of a connection in one place. Must not know how they are enforced.

/// Bounds on what a peer may make the server hold, parse or wait for.
///
/// Sizes are bytes, times are milliseconds; a time of `0` switches that limit off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Request line and field lines together; beyond it 431 (414 while still in the target).
    pub head_bytes_max: usize,
    /// Field lines in a head; beyond it 431. At most [`Limits::FIELDS_CEILING`].
    pub field_count_max: usize,
    /// Request target; beyond it 414.
    pub target_bytes_max: usize,
    /// Request body after decoding; beyond it 413.
    pub body_bytes_max: u64,
    /// Chunk extensions of one body, all chunks together; beyond it 400.
    pub chunk_extension_bytes_max: usize,
    /// Trailer section of one body; beyond it 431.
    pub trailer_bytes_max: usize,
    /// Answers that may wait for one send; further requests stay unread until it has left.
    pub pipelined_requests_max: usize,
    /// From the first byte of a request to the end of its head; beyond it 408.
    pub head_timeout_ms: u32,
    /// Longest pause between two pieces of a request body; beyond it 408.
    pub body_timeout_ms: u32,
    /// Longest pause without the peer taking a byte of an answer; beyond it the connection ends.
    pub write_timeout_ms: u32,
    /// Bytes per second that a peer must send of a request body, or take of a response, on average
    /// over [`Limits::rate_window_ms`] in which the server waits for it; below it 408 if no
    /// response has begun, else the connection is reset. 0, the default, switches this off: an
    /// application whose bodies are conversations may have clients that say little. The object
    /// server asks for 100.
    pub rate_bytes_per_s_min: u32,
    /// Time spent waiting for the peer, over which its rate is an average. A request that has not
    /// waited that long in all is not judged.
    pub rate_window_ms: u32,
    /// Keep-alive: longest silence between two requests; beyond it the connection ends.
    pub idle_timeout_ms: u32,
    /// From the head of a request to the end of its answer, an hour unless set; beyond it the
    /// connection ends. Servers of large files want more.
    pub total_timeout_ms: u32,
    /// How long a lingering close reads and discards, so that the peer can read the last answer.
    pub linger_timeout_ms: u32,
}

impl Limits {
    /// The largest `field_count_max` that is honoured: the parser's table lives on the stack.
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
