//! The bare loop on epoll: edge-triggered, one receive and one send for each event.
//!
//! `limit-epoll PORT` closes no connection. With `close-asked` it closes those whose request has
//! `Connection: close`, with `close` all of them after one response. It closes in the cheapest
//! known way: the kernel offers a connection when its request has arrived, so that the loop need
//! not watch it, and the response leaves in one segment with the end of the connection. The table
//! has the CPU with one request per connection, as a ratio to accept, watch, wait, receive, send,
//! close:
//!
//! | change | CPU |
//! | --- | --- |
//! | receive directly after accept; watch only without data | 0.91 |
//! | also the response with the end (`MSG_MORE`, then `close`) | 0.74 |
//! | also accept with data (`TCP_DEFER_ACCEPT`) | 0.52 |

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

/// Room for more than 32 requests.
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
    /// Receives and responds on a connection, and closes it if necessary.
    #[inline]
    fn serve(&mut self, socket: i32) -> Then {
        loop {
            let then = match net::receive(socket, &mut self.received) {
                Received::Bytes(len) => {
                    let then = self.responses.respond(socket, &self.received[..len]);
                    // After a full buffer there may be more data, which causes no new event.
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

    /// Accepts and serves all waiting connections. Watches those whose request is incomplete.
    fn accept_and_serve(&mut self, listener: &OwnedFd, epoll: &Epoll) -> io::Result<()> {
        while let Some(socket) = net::accept(listener) {
            if self.serve(socket) == Then::Open {
                watch(epoll, socket)?;
            }
        }
        Ok(())
    }
}
