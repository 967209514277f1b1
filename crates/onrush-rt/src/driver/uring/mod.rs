//! The io_uring driver: multishot accept, multishot receive into ring-mapped buffers, one
//! `io_uring_enter` per event-loop iteration.
//!
//! The driver queues submissions and builds their entries in `poll_events`. A queued submission
//! carries the generation of its stream. So no entry can refer to a descriptor number that was
//! closed and reused for another connection in between. Completions carry the generation as well; a
//! completion of a closed stream only returns its buffer.
//!
//! A *direct* system call is one that does not go through the ring.
//!
//! Modules, lowest first: `setup` · `accept` (listeners) · `submit` · `complete`. They do not
//! depend on the other drivers.

mod accept;
mod complete;
mod setup;
mod submit;
#[cfg(test)]
mod tests;

pub use setup::Setup;

use super::bufring::BufferRing;
use super::slots::{self, Slots};
use super::{Config, ListenerId, Socket, StreamId, direct, stale};
use crate::buf::{Budget, BufferPool};
use accept::Listener;
use io_uring::{IoUring, types};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The only group of provided buffers.
const GROUP: u16 = 0;
const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;
/// Generations share the data of a completion with its kind, so they have 24 bits.
const GENERATION_MASK: u32 = 0xff_ffff;

/// The operation of a completion: `kind << 56 | generation << 32 | index`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Accept = 1,
    Receive,
    Cancel,
    Unlisten,
    /// Cancels the accept of a listener that is held.
    HoldAccept,
    PollRead,
    PollWrite,
    Wake,
    /// Cancels a poll of a stream that is gone.
    ForgetRead,
    ForgetWrite,
    /// Polls for the end of a stream that is not received from.
    PollEnd,
    ForgetEnd,
}

fn user_data(kind: Kind, index: u32, generation: u32) -> u64 {
    (kind as u64) << 56 | u64::from(generation & GENERATION_MASK) << 32 | u64::from(index)
}

/// The inverse of [`user_data`]; no kind for data that this driver did not build.
#[inline(always)]
fn decode_user_data(data: u64) -> (Option<Kind>, u32, u32) {
    const KINDS: [Kind; 12] = [
        Kind::Accept,
        Kind::Receive,
        Kind::Cancel,
        Kind::Unlisten,
        Kind::HoldAccept,
        Kind::PollRead,
        Kind::PollWrite,
        Kind::Wake,
        Kind::ForgetRead,
        Kind::ForgetWrite,
        Kind::PollEnd,
        Kind::ForgetEnd,
    ];
    let byte = (data >> 56) as u8;
    let kind = KINDS.into_iter().find(|kind| *kind as u8 == byte);
    (kind, data as u32, (data >> 32) as u32 & GENERATION_MASK)
}

/// The receive state of one stream: Off → Queued → Armed → Cancelling → Off; Armed → Off (receive
/// ended) or → Starved (`ENOBUFS`); Starved → Off (direct receive) or → Queued (buffer posted);
/// Queued and Starved → Off (pause); Off → Polled → Off.
///
/// A multishot receive moves a large body from the socket into many small buffers before the owner
/// can provide a better place for it. An owner that receives a body itself pauses the stream. So
/// after a pause, the next receive works as on epoll: a poll reports readability, one direct
/// system call receives, and the owner decides. If it does not pause then, the next receive is
/// multishot again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    /// The kernel holds no receive of this stream.
    Off,
    /// Wanted; queued for the next `poll_events`.
    Queued,
    /// Wanted; waits for a buffer, in `Uring::starved`.
    Starved,
    /// The kernel runs it.
    Armed,
    /// Its cancellation is queued or submitted.
    Cancelling,
    /// A poll is queued or in the kernel; a direct receive follows its completion.
    Polled,
}

/// What the driver stores with a stream.
#[derive(Debug)]
struct Stream {
    receive: Receive,
    /// The owner wants *buffers*; this may be true again while `Cancelling`.
    wanted: bool,
    /// A `ReceiveStopped` event is due.
    stopped_event_due: bool,
    /// The owner paused the stream since the last receive after a poll.
    poll_before_receive: bool,
    /// Polls queued or in the kernel: `POLL_READ`, `POLL_WRITE`, `POLL_END`.
    polls: u8,
    /// A `Readable` event is due; a poll may outlive this.
    readable_due: bool,
    /// The owner wants the end reported while the stream is paused. A poll for the end may also
    /// have been queued while the stream waited for a buffer.
    end_wanted: bool,
    /// The peer has ended the stream behind bytes that were not received. Only a failure can
    /// follow, which is what polls for the end are for from now on.
    half_closed: bool,
    token: u64,
}

type Slot = slots::Slot<OwnedFd, Stream>;

const POLL_READ: u8 = 1;
const POLL_WRITE: u8 = 2;
const POLL_END: u8 = 4;

/// A submission for the next `poll_events`.
#[derive(Clone, Copy, Debug)]
struct Submission {
    kind: Kind,
    index: u32,
    generation: u32,
}

/// The driver; see the module's documentation.
pub struct Uring {
    // The ring is dropped first: it ends every receive before the buffers are freed.
    ring: IoUring,
    buffers: BufferRing,
    streams: Slots<OwnedFd, Stream, GENERATION_MASK>,
    listeners: Vec<Listener>,
    submissions: Vec<Submission>,
    /// Streams that were attached since the last `poll_events`. Most have sent something already,
    /// and many are closed before a receive in the ring pays off.
    unsubmitted_streams: Vec<StreamId>,
    /// Streams with a direct receive: armed again unless they are paused.
    rearm: Vec<StreamId>,
    /// Streams whose receive ended because no buffer was posted, the oldest first. Direct receives
    /// serve them one at a time: submitting all of them again for a few buffers would make most
    /// fail again. May contain some that are no longer [`Receive::Starved`].
    starved: VecDeque<StreamId>,
    /// A completion was taken last, so a starved stream is next.
    starved_next: bool,
    /// A starved stream found no block since the last `poll_events`.
    out_of_blocks: bool,
    /// Accepted connections that are not reported yet: one multishot accept takes over the whole
    /// queue of a listener at once.
    accepted: VecDeque<(ListenerId, OwnedFd)>,
    /// How many of them may be reported before the next `poll_events`.
    accepted_left: usize,
    wake_fd: Option<i32>,
    /// Listeners whose accept is cancelled; direct system calls empty them, then they are
    /// closed.
    closing: Vec<u32>,
    /// A stream whose `ReceiveStopped` may be due before the next completion, unless it is closed
    /// or receives again by then.
    next_stopped: Option<StreamId>,
    /// Completions taken in this iteration; bounded, so that the worker's tasks run in between.
    taken: u32,
    /// The errno with which cancelling everything fails.
    #[cfg(test)]
    cancel_fails: Option<i32>,
}

impl Uring {
    /// Builds a ring with the flags of `setup` and registers its buffers (`io_uring_setup(2)`,
    /// `IORING_REGISTER_PBUF_RING`). Fails with the kernel's error.
    pub fn new(setup: Setup, config: &Config) -> io::Result<Uring> {
        let ring = setup.build()?;
        let budget = Budget::new(config.receive_bytes_max);
        let pool = BufferPool::new(config.ring_buffer_bytes, 1024, budget);
        let buffers = BufferRing::register(&ring, GROUP, config.ring_buffers, pool)?;
        Ok(Uring {
            ring,
            buffers,
            streams: Slots::new(),
            listeners: Vec::new(),
            submissions: Vec::new(),
            unsubmitted_streams: Vec::new(),
            rearm: Vec::new(),
            starved: VecDeque::new(),
            starved_next: false,
            out_of_blocks: false,
            accepted: VecDeque::new(),
            accepted_left: 0,
            wake_fd: None,
            closing: Vec::new(),
            next_stopped: None,
            taken: 0,
            #[cfg(test)]
            cancel_fails: None,
        })
    }

    /// The pool of receive buffers.
    pub fn pool(&self) -> &BufferPool {
        self.buffers.pool()
    }

    pub(super) fn watch_wakes(&mut self, eventfd: &OwnedFd) -> io::Result<()> {
        self.wake_fd = Some(eventfd.as_raw_fd());
        self.queue_submission(Kind::Wake, 0, 0);
        Ok(())
    }

    fn queue_submission(&mut self, kind: Kind, index: u32, generation: u32) {
        self.submissions.push(Submission {
            kind,
            index,
            generation,
        });
    }

    pub(super) fn has_ready(&self) -> bool {
        self.next_stopped.is_some()
            || !self.closing.is_empty()
            || !self.accepted.is_empty()
            || !(self.starved.is_empty() || self.out_of_blocks)
    }

    pub(super) fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        let Socket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let id = self.streams.insert(socket, |_| Stream {
            receive: Receive::Off,
            wanted: false,
            stopped_event_due: false,
            poll_before_receive: false,
            polls: 0,
            readable_due: false,
            end_wanted: false,
            half_closed: false,
            token,
        });
        self.unsubmitted_streams.push(id);
        Ok(id)
    }

    #[inline]
    pub(super) fn descriptor(&self, id: StreamId) -> Option<BorrowedFd<'_>> {
        self.streams.descriptor(id)
    }

    pub(super) fn receive(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        stream.wanted = true;
        (stream.stopped_event_due, stream.readable_due) = (false, false);
        stream.end_wanted = false;
        if stream.receive == Receive::Off {
            self.arm(id);
        }
    }

    /// Begins a receive, multishot or after a poll.
    fn arm(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if stream.poll_before_receive {
            stream.receive = Receive::Polled;
            self.poll(id, Kind::PollRead, POLL_READ);
        } else {
            stream.receive = Receive::Queued;
            self.queue_submission(Kind::Receive, id.index, id.generation);
        }
    }

    /// Arms streams again whose direct receive is done and that still want buffers.
    fn arm_again(&mut self) {
        let mut again = std::mem::take(&mut self.rearm);
        for id in again.drain(..) {
            let due = |stream: &&mut Slot| stream.wanted && stream.receive == Receive::Off;
            if self.streams.get_mut(id).filter(due).is_some() {
                self.arm(id);
            }
        }
        self.rearm = again;
    }

    pub(super) fn pause(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(id) else {
            return true;
        };
        stream.wanted = false;
        stream.poll_before_receive = true;
        match stream.receive {
            Receive::Off => !stream.stopped_event_due,
            Receive::Queued | Receive::Starved | Receive::Polled => {
                stream.receive = Receive::Off;
                true
            }
            Receive::Armed => {
                stream.receive = Receive::Cancelling;
                stream.stopped_event_due = true;
                self.queue_submission(Kind::Cancel, id.index, id.generation);
                false
            }
            Receive::Cancelling => {
                stream.stopped_event_due = true;
                false
            }
        }
    }

    pub(super) fn watch_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id).filter(|stream| !stream.wanted) {
            stream.end_wanted = true;
            if std::mem::take(&mut stream.half_closed) && stream.polls & POLL_END != 0 {
                // Bytes before the end may have been received meanwhile: look again.
                return self.queue_submission(Kind::ForgetEnd, id.index, id.generation);
            }
            self.poll(id, Kind::PollEnd, POLL_END);
        }
    }

    pub(super) fn recv(&mut self, id: StreamId, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        direct::recv(self.descriptor(id).ok_or_else(stale)?, into)
    }

    pub(super) fn want_read(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.readable_due = true;
            self.poll(id, Kind::PollRead, POLL_READ);
        }
    }

    fn poll(&mut self, id: StreamId, kind: Kind, bit: u8) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if stream.polls & bit == 0 {
            stream.polls |= bit;
            self.queue_submission(kind, id.index, id.generation);
        }
    }

    pub(super) fn want_write(&mut self, id: StreamId) {
        self.poll(id, Kind::PollWrite, POLL_WRITE);
    }

    pub(super) fn close(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        let held =
            stream.polls != 0 || matches!(stream.receive, Receive::Armed | Receive::Cancelling);
        if let Some(socket) = self.streams.remove(id)
            && held
        {
            // The kernel's operation holds the socket open: end it, or no FIN is sent.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        self.descriptor_freed();
    }

    pub(super) fn reset(&mut self, id: StreamId) {
        if let Some(socket) = self.streams.remove(id) {
            abort(socket);
            self.descriptor_freed();
        }
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<Socket> {
        let polls = self.streams.get_mut(id)?.polls;
        // A poll left in the ring would hold the socket open when its next owner closes it.
        for (bit, kind) in [
            (POLL_READ, Kind::ForgetRead),
            (POLL_WRITE, Kind::ForgetWrite),
            (POLL_END, Kind::ForgetEnd),
        ] {
            if polls & bit != 0 {
                self.queue_submission(kind, id.index, id.generation);
            }
        }
        self.streams.remove(id).map(Socket::Os)
    }
}

/// Closes a socket with a reset, even while an operation of the ring holds it open. A shutdown
/// would send a FIN first, and the peer could mistake a truncated stream for a complete one.
fn abort(socket: OwnedFd) {
    // Disconnecting (connect(2), `AF_UNSPEC`) resets at once and wakes the ring's operation; only
    // TCP supports it. If it fails, only an orderly end is possible.
    let tcp = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).is_ok();
    if !tcp || rustix::net::connect_unspec(&socket).is_err() {
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    }
}

impl Uring {
    /// Cancels every operation (`IORING_REGISTER_SYNC_CANCEL`, Linux 6.0), within a second.
    fn cancel_everything(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(errno) = self.cancel_fails {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let second = types::Timespec::new().sec(1);
        loop {
            let everything = types::CancelBuilder::any();
            let submitter = self.ring.submitter();
            match submitter.register_sync_cancel(Some(second), everything) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // There was no operation.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                result => return result,
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel must release every buffer before it is freed, and closing a ring only begins
        // that. Synchronous cancellation (Linux 6.0) completes it. On older kernels, shutting the
        // sockets down ends their receives.
        for socket in self.streams.take_sockets() {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        let cancelled = self.cancel_everything();
        // Completes the cancelled operations, which releases the sockets they hold: a listener's
        // address is free when this returns.
        let entered = self.enter(Some(Duration::ZERO));
        if cancelled.is_err() || entered.is_err() {
            // A receive may remain that writes to a buffer.
            self.buffers.leak();
        }
        self.taken = 0;
        // Drops buffers and accepted sockets in unprocessed completions.
        while self.next().is_some() {}
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring")
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}
