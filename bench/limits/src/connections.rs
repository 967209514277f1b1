//! The event loop of the bare loops whose connections have a state. It does not depend on what a
//! connection does.

use crate::{epoll::Epoll, net};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// Accepts the connections of `listener` and watches each for `events`. Calls `serve` with the
/// state and the socket of each ready connection, and closes the connection if that returns false.
/// Returns only after an error.
///
/// # Errors
/// A system call on the epoll instance fails.
pub fn serve_all<C: Default>(
    listener: &OwnedFd,
    events: i32,
    mut serve: impl FnMut(&mut C, i32) -> bool,
) -> io::Result<()> {
    let mut epoll = Epoll::new()?;
    epoll.watch(listener.as_raw_fd(), libc::EPOLLIN)?;
    // The place of a connection is its descriptor.
    let mut connections: Vec<C> = Vec::new();
    loop {
        for event in 0..epoll.wait()? {
            let socket = epoll.ready(event);
            if socket != listener.as_raw_fd() {
                let connection = &mut connections[socket as usize];
                if !serve(connection, socket) {
                    *connection = C::default();
                    net::close(socket);
                }
                continue;
            }
            while let Some(socket) = net::accept(listener) {
                let place = socket as usize;
                if connections.len() <= place {
                    connections.resize_with(place + 1, C::default);
                }
                epoll.watch(socket, events)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Follows, Received};
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
    };

    #[test]
    fn each_connection_has_a_new_state_and_is_closed_at_its_end() {
        let listener = net::listen(0).expect("listens");
        let same = TcpListener::from(listener.try_clone().expect("cloned"));
        let address = same.local_addr().expect("an address");
        // Ends with the process.
        thread::spawn(move || {
            let mut buffer = [0; 16];
            let serve = |count: &mut u8, socket| match net::receive(socket, &mut buffer) {
                Received::Bytes(_) => {
                    *count += 1;
                    net::send(socket, &[*count], Follows::Nothing);
                    *count < 2
                }
                Received::Nothing => true,
                Received::End => false,
            };
            serve_all(&listener, libc::EPOLLIN, serve)
        });
        for _ in 0..2 {
            let mut client = TcpStream::connect(address).expect("connects");
            let mut byte = [0];
            for expected in 1..=2 {
                client.write_all(b"x").expect("sent");
                client.read_exact(&mut byte).expect("received");
                assert_eq!(byte, [expected]);
            }
            assert_eq!(client.read(&mut byte).expect("the end"), 0);
        }
    }
}
