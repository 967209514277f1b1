//! The bare loop on io_uring: multishot accept, multishot receive into buffers that the kernel
//! takes from a ring, and one plain send for each receive; one `enter` a turn.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use limits::{answer_all, close, listen, send, set_no_delay};
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

fn main() -> io::Result<()> {
    let listener = listen()?;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(COMPLETIONS)
        .build(SUBMISSIONS)?;
    let mut buffers = Buffers::register(&ring)?;
    let accept = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build();
    let accept = accept.user_data(ACCEPTED);
    let mut out = Vec::new();

    let (submitter, mut submissions, mut completions) = ring.split();
    push(&mut submissions, &accept);
    loop {
        submissions.sync();
        submitter.submit_and_wait(1)?;
        completions.sync();
        for completion in &mut completions {
            let (result, flags) = (completion.result(), completion.flags());
            if completion.user_data() == ACCEPTED {
                if result >= 0 {
                    set_no_delay(result);
                    push(&mut submissions, &receive(result));
                }
                if !cqueue::more(flags) {
                    push(&mut submissions, &accept);
                }
                continue;
            }
            let socket = completion.user_data() as i32;
            match (result, cqueue::buffer_select(flags)) {
                (1.., Some(buffer)) => {
                    out.clear();
                    answer_all(buffers.received(buffer, result as usize), &mut out);
                    buffers.give_back(buffer);
                    send(socket, &out);
                }
                // All buffers are in use: what came stays in the socket until the next attempt.
                (_, None) if result == -libc::ENOBUFS => {}
                _ => {
                    close(socket);
                    continue;
                }
            }
            if !cqueue::more(flags) {
                push(&mut submissions, &receive(socket));
            }
        }
    }
}

fn receive(socket: i32) -> squeue::Entry {
    opcode::RecvMulti::new(types::Fd(socket), GROUP)
        .build()
        .user_data(socket as u64)
}

fn push(submissions: &mut squeue::SubmissionQueue<'_>, entry: &squeue::Entry) {
    // SAFETY: an accept without an address and a receive into the kernel's choice of buffer hold
    // no pointers; and the buffers live as long as the process.
    let pushed = unsafe { submissions.push(entry) };
    pushed.expect("a turn submits less than one operation for each connection");
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
