//! The bare loop on epoll: edge-triggered, one receive and one send for each readiness.
//!
//! `limit-epoll PORT` closes no connection; with `close-asked` it closes those whose request asks
//! for it, with `close` all of them after one answer. Closing is the cheapest that was found: the
//! kernel offers a connection when its request has come, so that nothing needs to be watched, and
//! the answer leaves in one segment with the end of the connection. Measured with a connection a
//! request, as a ratio to accept, watch, wait, receive, send, close:
//!
//! | what | CPU |
//! | --- | --- |
//! | received at once after accepting, watched only if nothing is there | 0.91 |
//! | and the answer with the end (`MSG_MORE`, then `close`) | 0.74 |
//! | and accepted with data (`TCP_DEFER_ACCEPT`) | 0.52 |

use limits::{
    arguments::{Closing, argument, closing},
    epoll::Epoll,
    net::{self, Received},
    requests::{Responses, Then},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// Room for 32 requests and more.
const RECEIVE_BYTES: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let listener = net::listen(argument(1, "limit-epoll PORT [never|close|close-asked]")?)?;
    let closing = closing()?;
    if closing != Closing::Never {
        net::accept_with_data(&listener)?;
    }
    let mut epoll = Epoll::new()?;
    epoll.watch(listener.as_raw_fd(), libc::EPOLLIN)?;
    let mut connections = Connections {
        responses: Responses::new(closing),
        received: vec![0; RECEIVE_BYTES],
    };
    loop {
        for event in 0..epoll.wait()? {
            let socket = epoll.ready(event);
            if socket != listener.as_raw_fd() {
                connections.serve(socket);
            } else if closing != Closing::Never {
                connections.accept_and_serve(&listener, &epoll)?;
            } else {
                while let Some(socket) = net::accept(&listener) {
                    watch(&epoll, socket)?;
                }
            }
        }
    }
}

fn watch(epoll: &Epoll, socket: i32) -> io::Result<()> {
    epoll.watch(socket, libc::EPOLLIN | libc::EPOLLET)
}

struct Connections {
    responses: Responses,
    received: Vec<u8>,
}

impl Connections {
    /// Serves whatever has come for a connection; closes it when that is due.
    #[inline]
    fn serve(&mut self, socket: i32) -> Then {
        loop {
            let then = match net::receive(socket, &mut self.received) {
                Received::Bytes(len) => {
                    let then = self.responses.response(socket, &self.received[..len]);
                    // A full buffer may not have been all, and an edge is told only once.
                    if then == Then::Open && len == self.received.len() {
                        continue;
                    }
                    then
                }
                Received::Nothing => Then::Open,
                Received::End => Then::Close,
            };
            if then == Then::Close {
                self.responses.forget(socket);
                net::close(socket);
            }
            return then;
        }
    }

    /// Serves each connection that waits; watches those whose request is not whole.
    fn accept_and_serve(&mut self, listener: &OwnedFd, epoll: &Epoll) -> io::Result<()> {
        while let Some(socket) = net::accept(listener) {
            if self.serve(socket) == Then::Open {
                watch(epoll, socket)?;
            }
        }
        Ok(())
    }
}
