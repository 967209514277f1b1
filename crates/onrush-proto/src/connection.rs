//! One HTTP/1 server connection as a state machine; every transition is in this file.
//!
//! Requests are answered in order, one at a time: after `Step::Request` the machine refuses the next
//! head until the answer has been finished with `next`. It holds no buffer and no clock.
use crate::{chunked::Piece, head::{Framing, Head, Version}, limits::Limits, reject::Reject, response::ContentLength};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step { /// not a whole head yet
    NeedMore, /// a request; its head is this many bytes, the body (if any) follows as `framing()` says
    Request { head_bytes: usize } }

/// How the answer's content must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendAs { /// no content may follow (HEAD, 1xx, 204, 304, or length 0)
    Nothing, /// exactly this many bytes, as they are
    Length(u64), /// each piece as a chunk, then `send_end`
    Chunked, /// as they are until the connection closes (HTTP/1.0)
    UntilClose }

/// What to do when an answer has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After { /// wait for or parse the next request
    KeepAlive,
    /// request body not wholly read but small enough/announced: caller must first read & discard it via receive_body, then next request
    DrainThenKeepAlive,
    /// everything of the peer's was read: close at once
    Close, /// unread input may be in flight: shut down writing, read and discard for a while, then close
    LingeringClose }

/// What the peer's end of stream means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eof { /// between requests: close
    Clean, /// in a head or a body: the request is not complete
    Truncated, /// a whole request is being answered: finish the answer, then close
    AnswerDue }

/// ≤ 64 bytes.
#[derive(Debug)]
pub struct Connection {/* … */}
impl Connection {
    pub fn new() -> Self { todo!() }
    /// Hot path. Parses one head at the start of `input`. Leading empty lines (CRLF) before a request line are skipped and counted in head_bytes.
    pub fn receive_head(&mut self, input: &[u8], head: &mut Head, limits: &Limits) -> Result<Step, Reject> { todo!() }
    /// Decodes the next piece of the body. At the end `Piece::end`. Also right after the head when framing is Length.
    pub fn receive_body(&mut self, input: &[u8], limits: &Limits) -> Result<Piece, Reject> { todo!() }
    pub fn body_ended(&self) -> bool { todo!() }
    /// The next n bytes on the wire are body bytes as they are; they may bypass the machine (spliced, received straight to their place).
    pub fn body_run(&self) -> u64 { todo!() }
    /// Tells of `bytes` (≤ `body_run()`) that went past the machine. Enforces body_bytes_max for chunked.
    pub fn skip_body(&mut self, bytes: u64, limits: &Limits) -> Result<(), Reject> { todo!() }
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> { todo!() }
    pub fn receive_eof(&mut self) -> Eof { todo!() }
    /// A 100 is owed: Expect was sent, no body byte has arrived, no final answer begun.
    pub fn continue_due(&self) -> bool { todo!() }
    pub fn send_continue(&mut self, out: &mut Vec<u8>) { todo!() }
    /// Other 1xx (103 …). Nothing for HTTP/1.0.
    pub fn send_informational(&mut self, status: u16, fields: &[u8], out: &mut Vec<u8>) { todo!() }
    /// Hot path. Begins the final answer: status line, Server? no: Date, Content-Length / Transfer-Encoding / Connection as needed, `content_type` line, rendered `fields`, empty line.
    /// Decides persistence. `close` asks for a close after this answer.
    pub fn send_head(&mut self, status: u16, content_type: Option<&str>, fields: &[u8], length: ContentLength, date: &[u8; 29], close: bool, out: &mut Vec<u8>) -> SendAs { todo!() }
    /// Ends a chunked answer. Trailers are rendered field lines.
    pub fn send_end(&mut self, trailers: &[u8], out: &mut Vec<u8>) { todo!() }
    /// The answer has been handed over whole.
    pub fn next(&mut self, limits: &Limits) -> After { todo!() }
    /// The answer to a refused request: whole, with `Connection: close`; `next` is then Close/LingeringClose.
    pub fn send_reject(&mut self, reject: Reject, date: &[u8; 29], out: &mut Vec<u8>) { todo!() }
    /// No further requests: answers from now on say `Connection: close` (drain).
    pub fn close_after_next(&mut self) { todo!() }
}
