//! The actions that [`Connection`](crate::connection::Connection) returns to its caller.
//!
//! [`crate::connection`] re-exports all of them.

/// What [`Connection::receive_head`](crate::connection::Connection::receive_head) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The head is not complete yet.
    NeedMore,
    /// A request. [`Head::framing`](crate::head::Head::framing) describes its body, if any.
    Request {
        /// Length of the head in the input. The caller drops these bytes when it no longer needs
        /// the head.
        head_bytes: usize,
    },
}

/// How the content of a response must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAs {
    /// No content may follow (HEAD, 1xx, 204, 205, 304, or length 0).
    Nothing,
    /// Exactly this many bytes, unframed.
    Length(u64),
    /// Each piece as a chunk, then `send_end`.
    Chunked,
    /// Unframed bytes until the connection closes (HTTP/1.0, or the protocol after a 101).
    UntilClose,
}

/// What to do after a response has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Wait for or parse the next request.
    KeepAlive,
    /// The unread rest of the request body is small enough to discard. Read it with `receive_body`
    /// and drop the data; the next request follows its end. If `receive_body` fails, send no
    /// further response: perform a lingering close.
    DrainThenKeepAlive,
    /// The peer sends nothing more: close at once.
    Close,
    /// Unread input may be in flight: shut down writing, read and discard for a while, then close.
    /// An immediate close would reset the connection, and the reset may overtake the response.
    LingeringClose,
}

/// What the peer's end of stream means in the current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eof {
    /// Between requests: close.
    Clean,
    /// In a head or a body: the request is not complete.
    Truncated,
    /// A complete request still needs its response. Finish the response, serve the requests that
    /// are already buffered, then call `receive_eof` again.
    ResponseDue,
}
