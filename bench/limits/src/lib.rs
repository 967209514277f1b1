//! What the bare loops have in common: arguments, the listener, requests, and canned answers.
//!
//! A bare loop is the least a server can do with a driver: it receives, parses each request with
//! httparse, looks at no more of it than the loop is for, and sends an answer of the same length
//! as that of the server it is a limit for. It has no limits on anything, no time-outs and no
//! date that changes. What a real server costs beyond it is what the server adds.
//!
//! It loses no answer, though, or a row measured against it would be void: a request that arrives
//! in pieces is put together, and an answer that does not fit is finished. Neither happens on the
//! way that is measured, and neither costs anything there.
//!
//! Must not know what is measured of it.

pub mod arguments;
pub mod epoll;
pub mod net;
pub mod requests;
