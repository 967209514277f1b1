//! The bare loop on io_uring: multishot accept, multishot receive into buffers that the kernel
//! takes from a ring, and one plain send for each receive; one `enter` a turn.
//!
//! `limit-uring PORT` closes no connection; with `close-asked` it closes those whose request asks
//! for it, with `close` all of them after one answer. Closing is the cheapest that was found: the
//! kernel offers a connection when its request has come, plain calls receive it and send the
//! answer, which leaves in one segment with the end of the connection, and the ring closes.
//! Measured with a connection a request, as a ratio to `limit-epoll` doing the same:
//!
//! | what | CPU |
//! | --- | --- |
//! | as above | 0.93 |
//! | closed by a plain call instead | 0.96 |
//! | direct descriptors; receive, send, close by ring | 0.97 |
//! | the same, and a `shutdown` between send and close | 1.10 |
//! | single-shot receive by ring, plain send and close | 1.02 |
//! | the last without accepting with data | 1.51 |

use io_uring::{IoUring, Submitter, cqueue, opcode, squeue, types};
use limits::{
    arguments::{Closing, argument, closing},
    net::{self, Received},
    requests::{Responses, Then},
};
use std::{
    io,
    os::fd::AsRawFd,
    slice,
    sync::atomic::{AtomicU16, Ordering},
};

const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;

const BUFFERS: u16 = 1024;
const BUFFER_BYTES: usize = 4096;
const GROUP: u16 = 0;

/// What a completion of the listener carries; one of a connection carries its descriptor.
const ACCEPTED: u64 = u64::MAX;

/// What a completion of a close carries.
const CLOSED: u64 = u64::MAX - 1;

fn main() -> io::Result<()> {
    let listener = net::listen(argument(1, "limit-uring PORT [never|close|close-asked]")?)?;
    let closing = closing()?;
    if closing != Closing::Never {
        net::accept_with_data(&listener)?;
    }
    let mut ring = ring()?;
    let buffers = Buffers::register(&ring)?;
    let (submitter, submissions, mut completions) = ring.split();
    let mut server = Server {
        closing,
        accept: opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd()))
            .build()
            .user_data(ACCEPTED),
        submitter,
        submissions,
        buffers,
        responses: Responses::new(closing),
        received: vec![0; BUFFER_BYTES],
    };
    server.push(&server.accept.clone())?;
    loop {
        server.submissions.sync();
        server.submitter.submit_and_wait(1)?;
        completions.sync();
        for completion in &mut completions {
            match completion.user_data() {
                ACCEPTED => server.accepted(&completion)?,
                // A close that failed, which nothing depends on; one that succeeds is silent.
                CLOSED => {}
                socket => server.received(socket as i32, &completion)?,
            }
        }
    }
}

fn ring() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(COMPLETIONS);
    let plain = builder.clone();
    // Saves a read for each submission, where the kernel knows it (6.6).
    let lean = builder.setup_no_sqarray().build(SUBMISSIONS);
    lean.or_else(|_| plain.build(SUBMISSIONS))
}

struct Server<'r> {
    closing: Closing,
    accept: squeue::Entry,
    submitter: Submitter<'r>,
    submissions: squeue::SubmissionQueue<'r>,
    buffers: Buffers,
    responses: Responses,
    /// For what is received by a plain call.
    received: Vec<u8>,
}

impl Server<'_> {
    fn accepted(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        let socket = completion.result();
        if socket >= 0 {
            let next = match self.serve_at_once(socket) {
                Then::Open => receive(socket),
                Then::Close => {
                    self.responses.forget(socket);
                    close(socket)
                }
            };
            self.push(&next)?;
        }
        if !cqueue::more(completion.flags()) {
            self.push(&self.accept.clone())?;
        }
        Ok(())
    }

    /// Where connections are accepted with data the first request has come: it is served by plain
    /// calls.
    #[inline]
    fn serve_at_once(&mut self, socket: i32) -> Then {
        if self.closing == Closing::Never {
            return Then::Open;
        }
        match net::receive(socket, &mut self.received) {
            Received::Bytes(len) => self.responses.response(socket, &self.received[..len]),
            Received::Nothing => Then::Open,
            Received::End => Then::Close,
        }
    }

    #[inline]
    fn received(&mut self, socket: i32, completion: &cqueue::Entry) -> io::Result<()> {
        let (result, flags) = (completion.result(), completion.flags());
        let then = match (result, cqueue::buffer_select(flags)) {
            (1.., Some(buffer)) => {
                let received = self.buffers.received(buffer, result as usize);
                let then = self.responses.response(socket, received);
                self.buffers.give_back(buffer);
                then
            }
            // All buffers are in use: what came stays in the socket until the next attempt.
            (_, None) if result == -libc::ENOBUFS => Then::Open,
            _ => Then::Close,
        };
        let more = cqueue::more(flags);
        match then {
            Then::Open if more => {}
            Then::Open => self.push(&receive(socket))?,
            // The receive that still waits is ended by this, and its last completion closes.
            Then::Close if more => net::shutdown(socket),
            Then::Close => {
                self.responses.forget(socket);
                net::close(socket);
            }
        }
        Ok(())
    }

    /// Submits an operation with the next turn, or now when this turn has too many.
    #[inline]
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: an accept without an address, a receive into the kernel's choice of buffer and a
        // close hold no pointers; and the buffers live as long as the process.
        while unsafe { self.submissions.push(entry) }.is_err() {
            self.submissions.sync();
            self.submitter.submit()?;
            self.submissions.sync();
        }
        Ok(())
    }
}

/// Closes with the next turn, and says nothing when that has been done.
fn close(socket: i32) -> squeue::Entry {
    opcode::Close::new(types::Fd(socket))
        .build()
        .flags(squeue::Flags::SKIP_SUCCESS)
        .user_data(CLOSED)
}

fn receive(socket: i32) -> squeue::Entry {
    opcode::RecvMulti::new(types::Fd(socket), GROUP)
        .build()
        .user_data(socket as u64)
}

/// Memory for receiving, lent to the kernel through a ring that both sides see.
struct Buffers {
    ring: *mut types::BufRingEntry,
    memory: *mut u8,
    /// Buffers lent so far; the kernel reads it behind the first entry of the ring.
    tail: u16,
}

impl Buffers {
    fn register(ring: &IoUring) -> io::Result<Buffers> {
        let entries = map(usize::from(BUFFERS) * size_of::<types::BufRingEntry>())?;
        let memory = map(usize::from(BUFFERS) * BUFFER_BYTES)?;
        // SAFETY: the mapping is page-aligned, has room for all entries, and is never unmapped.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(entries as u64, BUFFERS, GROUP, 0)?;
        }
        let mut buffers = Buffers {
            ring: entries.cast(),
            memory,
            tail: 0,
        };
        for buffer in 0..BUFFERS {
            buffers.give_back(buffer);
        }
        Ok(buffers)
    }

    fn start(&self, buffer: u16) -> *mut u8 {
        assert!(
            buffer < BUFFERS,
            "the kernel named a buffer it does not have"
        );
        // SAFETY: a buffer below `BUFFERS` lies inside the mapping.
        unsafe { self.memory.add(usize::from(buffer) * BUFFER_BYTES) }
    }

    /// The first `len` bytes of a buffer the kernel has filled.
    #[inline]
    fn received(&self, buffer: u16, len: usize) -> &[u8] {
        // SAFETY: the buffer is ours until it is given back, which borrows `self` anew, and the
        // mapping began with zeros, so that all of it is initialised.
        unsafe { slice::from_raw_parts(self.start(buffer), len.min(BUFFER_BYTES)) }
    }

    /// Lends a buffer to the kernel, to fill it again.
    #[inline]
    fn give_back(&mut self, buffer: u16) {
        let start = self.start(buffer) as u64;
        let place = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: `place` is inside the ring; the kernel reads that entry only once the tail has
        // passed it, and it is not lent now, for it holds as many entries as there are buffers.
        let entry = unsafe { &mut *self.ring.add(place) };
        entry.set_addr(start);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail's place is in the ring, aligned, and the kernel only reads it.
        let tail = unsafe { &*types::BufRingEntry::tail(self.ring).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

/// Fresh zeroed memory of its own pages, present from the start.
fn map(bytes: usize) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a new mapping where the kernel likes; it touches no memory that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(start.cast())
    }
}
