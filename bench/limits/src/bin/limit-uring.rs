//! The bare loop on io_uring: multishot accept, multishot receive into buffers that the kernel
//! takes from a ring, one plain send for each receive, and one `enter` per loop iteration.
//!
//! `limit-uring PORT` closes no connection. With `close-asked` it closes those whose request has
//! `Connection: close`, with `close` all of them after one response. It closes in the cheapest
//! known way: the kernel offers a connection when its request has arrived. Plain calls receive the
//! request and send the response, which leaves in one segment with the end of the connection. The
//! ring closes the descriptor. The table has the CPU with one request per connection, as a ratio to
//! `limit-epoll`:
//!
//! | variant | CPU |
//! | --- | --- |
//! | as above | 0.93 |
//! | close by a plain call | 0.96 |
//! | direct descriptors; receive, send, close by the ring | 0.97 |
//! | the same, and a `shutdown` between send and close | 1.10 |
//! | single-shot receive by the ring, plain send and close | 1.02 |
//! | the previous one without accepting with data | 1.51 |

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

/// The user data of the accept operation. That of a receive operation is the descriptor.
const ACCEPTED: u64 = u64::MAX;

/// The user data of a close operation.
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
                // A failed close, on which nothing depends. A successful one has no completion.
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
    // Saves a read for each submission. Needs Linux 6.6.
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
    /// The buffer of plain receives.
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

    /// Serves the first request by plain calls if connections are accepted with data.
    #[inline]
    fn serve_at_once(&mut self, socket: i32) -> Then {
        if self.closing == Closing::Never {
            return Then::Open;
        }
        match net::receive(socket, &mut self.received) {
            Received::Bytes(len) => self.responses.respond(socket, &self.received[..len]),
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
                let then = self.responses.respond(socket, received);
                self.buffers.give_back(buffer);
                then
            }
            // All buffers are in use. The data stays in the socket until the next receive.
            (_, None) if result == -libc::ENOBUFS => Then::Open,
            _ => Then::Close,
        };
        let more = cqueue::more(flags);
        match then {
            Then::Open if more => {}
            Then::Open => self.push(&receive(socket))?,
            // This ends the pending receive, whose last completion closes the descriptor.
            Then::Close if more => net::shutdown(socket),
            Then::Close => {
                self.responses.forget(socket);
                net::close(socket);
            }
        }
        Ok(())
    }

    /// Queues an operation for the next `enter`. Submits first if the queue is full.
    #[inline]
    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: accept without an address, receive into a buffer of the ring, and close contain
        // no pointers. The buffers live as long as the process.
        while unsafe { self.submissions.push(entry) }.is_err() {
            self.submissions.sync();
            self.submitter.submit()?;
            self.submissions.sync();
        }
        Ok(())
    }
}

/// An operation that closes `socket`, without a completion on success.
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

/// Receive buffers, passed to the kernel through a shared ring.
struct Buffers {
    ring: *mut types::BufRingEntry,
    memory: *mut u8,
    /// The number of buffers passed so far. The kernel reads it from the first entry of the ring.
    tail: u16,
}

impl Buffers {
    fn register(ring: &IoUring) -> io::Result<Buffers> {
        let entries = map(usize::from(BUFFERS) * size_of::<types::BufRingEntry>())?;
        let memory = map(usize::from(BUFFERS) * BUFFER_BYTES)?;
        // SAFETY: the mapping is page-aligned, large enough for all entries, and never unmapped.
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
        assert!(buffer < BUFFERS, "the kernel returned an unknown buffer");
        // SAFETY: a buffer below `BUFFERS` is inside the mapping.
        unsafe { self.memory.add(usize::from(buffer) * BUFFER_BYTES) }
    }

    /// The first `len` bytes of a buffer that the kernel has filled.
    #[inline]
    fn received(&self, buffer: u16, len: usize) -> &[u8] {
        // SAFETY: the kernel does not write to the buffer until it is given back, which borrows
        // `self` mutably. The mapping is zeroed, so all of it is initialised.
        unsafe { slice::from_raw_parts(self.start(buffer), len.min(BUFFER_BYTES)) }
    }

    /// Returns a buffer to the kernel.
    #[inline]
    fn give_back(&mut self, buffer: u16) {
        let start = self.start(buffer) as u64;
        let place = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: `place` is inside the ring. The kernel reads the entry only after the tail has
        // passed it. The ring has as many entries as there are buffers, so this entry is free.
        let entry = unsafe { &mut *self.ring.add(place) };
        entry.set_addr(start);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is inside the ring and aligned, and the kernel only reads it.
        let tail = unsafe { &*types::BufRingEntry::tail(self.ring).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

/// New zeroed pages, which are populated at once.
fn map(bytes: usize) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(start.cast())
    }
}
