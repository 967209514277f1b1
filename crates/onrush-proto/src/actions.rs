//! What the machine tells its caller to do. Must not know how it comes to say so.
//!
//! All of it is found in [`crate::connection`] too.

/// What [`Connection::receive_head`](crate::connection::Connection::receive_head) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Not a whole head yet.
    NeedMore,
    /// A request; the body (if any) follows as [`Head::framing`](crate::head::Head::framing) says.
    Request {
        /// Bytes of the input that are the head; the caller drops them when it is done with it.
        head_bytes: usize,
    },
}

/// How the answer's content must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAs {
    /// No content may follow (HEAD, 1xx, 204, 205, 304, or length 0).
    Nothing,
    /// Exactly this many bytes, as they are.
    Length(u64),
    /// Each piece as a chunk, then `send_end`.
    Chunked,
    /// As they are until the connection closes (HTTP/1.0).
    UntilClose,
}

/// What to do when an answer has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Wait for or parse the next request.
    KeepAlive,
    /// A rest of the request body was not read, and is small enough to throw away: read it with
    /// `receive_body`, drop the data, and go on with the next request after its end. Should
    /// `receive_body` fail meanwhile, no answer is due any more: linger and close.
    DrainThenKeepAlive,
    /// Nothing more can come from the peer: close at once.
    Close,
    /// Unread input may be in flight: shut down writing, read and discard for a while, then close.
    /// Closing at once would reset the connection, and the reset may overtake the answer.
    LingeringClose,
}

/// What the peer's end of stream means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eof {
    /// Between requests: close.
    Clean,
    /// In a head or a body: the request is not complete.
    Truncated,
    /// A whole request is being answered: finish the answer, serve what is buffered behind it,
    /// ask again.
    ResponseDue,
}
