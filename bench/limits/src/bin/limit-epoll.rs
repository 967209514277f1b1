//! The bare loop on epoll: edge-triggered, one receive and one send for each readiness.

use limits::{answer_all, check, close, listen, send, set_no_delay};
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Readiness taken from the kernel at once.
const EVENTS: usize = 512;

/// Room for 16 requests and more.
const RECEIVE_BYTES: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let listener = listen()?;
    // SAFETY: makes a descriptor, which nobody else has yet.
    let epoll = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
    watch(&epoll, listener.as_raw_fd(), libc::EPOLLIN)?;

    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    let mut received = vec![0; RECEIVE_BYTES];
    let mut out = Vec::new();
    loop {
        let count = wait(&epoll, &mut events)?;
        for event in &events[..count] {
            let socket = event.u64 as i32;
            if socket == listener.as_raw_fd() {
                accept_all(&epoll, &listener)?;
                continue;
            }
            match receive(socket, &mut received) {
                Ok(0) => close(socket),
                Ok(len) => {
                    out.clear();
                    answer_all(&received[..len], &mut out);
                    send(socket, &out);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => close(socket),
            }
        }
    }
}

fn watch(epoll: &OwnedFd, socket: i32, events: i32) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: socket as u64,
    };
    // SAFETY: the kernel copies `event`, which outlives the call.
    let result = unsafe {
        libc::epoll_ctl(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            socket,
            &raw mut event,
        )
    };
    check(result).map(drop)
}

#[inline]
fn wait(epoll: &OwnedFd, events: &mut [libc::epoll_event; EVENTS]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `EVENTS` events to `events`, which has room for them.
    let count = unsafe {
        libc::epoll_wait(
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            EVENTS as libc::c_int,
            -1,
        )
    };
    check(count).map(|count| count as usize)
}

fn accept_all(epoll: &OwnedFd, listener: &OwnedFd) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>;
    loop {
        // SAFETY: no address is asked for, so the kernel writes nothing.
        let socket = unsafe {
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            libc::accept4(listener.as_raw_fd(), none().cast(), none().cast(), flags)
        };
        if socket < 0 {
            return Ok(());
        }
        set_no_delay(socket);
        watch(
            epoll,
            socket,
            libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET,
        )?;
    }
}

#[inline]
fn receive(socket: i32, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    let len = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if len < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(len as usize)
    }
}
