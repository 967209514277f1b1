//! The io_uring driver: multishot accept, multishot receive into ring-mapped buffers, one
//! `io_uring_enter` per event-loop iteration.
//!
//! The driver queues submissions and builds their entries in `poll_events`. A queued submission
//! carries the generation of its stream. So no entry can refer to a descriptor number that was
//! closed and reused for another connection in between. Completions carry the generation as well; a
//! completion of a closed stream only returns its buffer.
//!
//! Modules, lowest first: `setup` · `submit` · `complete`. It does not depend on the other drivers.

mod complete;
mod setup;
mod submit;

pub use setup::Setup;

use super::bufring::BufferRing;
use super::{Config, ListenSocket, ListenerId, Socket, StreamId};
use super::{direct, pauses_over, stale};
use crate::buf::{Budget, BufferPool};
use io_uring::{IoUring, types};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// The only group of provided buffers.
const GROUP: u16 = 0;
const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;

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

fn tag(kind: Kind, index: u32, generation: u32) -> u64 {
    (kind as u64) << 56 | u64::from(generation & 0xff_ffff) << 32 | u64::from(index)
}

/// The receive state of one stream: Off → Armed → Cancelling → Off, and Off → Polled → Off.
///
/// A multishot receive moves a large body from the socket into many small buffers before the owner
/// can provide a better place for it. An owner that receives a body itself pauses the stream. So
/// after a pause, the next receive works as on epoll: a poll reports readability, one plain call
/// receives, and the owner decides. If it does not pause then, the next receive is multishot again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    /// The kernel holds no receive of this stream.
    Off,
    /// Wanted; queued for the next `poll_events`, or waiting for buffers.
    Queued,
    /// The kernel runs it.
    Armed,
    /// Its cancellation is queued or submitted.
    Cancelling,
    /// A poll is queued or in the kernel; a plain receive follows its completion.
    Polled,
}

#[derive(Debug)]
struct Stream {
    socket: Option<OwnedFd>,
    generation: u32,
    receive: Receive,
    /// The owner wants *buffers*; this may be true again while `Cancelling`.
    wanted: bool,
    /// A `Quiet` event is due.
    quiet_due: bool,
    /// The owner paused the stream since the last receive after a poll.
    bulk: bool,
    /// Polls queued or in the kernel: `POLL_READ`, `POLL_WRITE`, `POLL_END`.
    polls: u8,
    /// A `Readable` event is due; a poll may outlive this.
    readable_due: bool,
    token: u64,
}

const POLL_READ: u8 = 1;
const POLL_WRITE: u8 = 2;
const POLL_END: u8 = 4;

#[derive(Debug)]
struct Listener {
    socket: Option<OwnedFd>,
    /// While accepting is paused: when to try again.
    paused_until: Option<Instant>,
    /// Accepting is stopped until `accept_again`.
    held: bool,
    /// The accept is queued or in the ring; a cancelled one until its last completion.
    armed: bool,
    /// To be closed when its queue is empty.
    closing: bool,
}

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
    streams: Vec<Stream>,
    free: Vec<u32>,
    listeners: Vec<Listener>,
    submissions: Vec<Submission>,
    /// Streams that were attached since the last `poll_events`. Most have sent something already,
    /// and many are closed before a receive in the ring pays off.
    fresh: Vec<StreamId>,
    /// Streams with a plain receive after a poll: armed again unless they are paused.
    again: Vec<StreamId>,
    /// Streams whose receive ended because no buffer was posted.
    starved: Vec<StreamId>,
    wake_fd: Option<i32>,
    /// Listeners whose accept is cancelled; plain calls empty them, then they are closed.
    closing: Vec<u32>,
    /// A stream whose `Quiet` may be due before the next completion, unless it is closed or
    /// receives again by then.
    follow: Option<StreamId>,
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
            streams: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            submissions: Vec::new(),
            fresh: Vec::new(),
            again: Vec::new(),
            starved: Vec::new(),
            wake_fd: None,
            closing: Vec::new(),
            follow: None,
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
        self.follow.is_some() || !self.closing.is_empty()
    }

    /// Resumes listeners whose pause is over; returns the timeout shortened to the next such end.
    fn resume_listeners(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let pauses = self.listeners.iter().map(|l| l.paused_until);
        let (over, timeout) = pauses_over(pauses, timeout);
        for index in over {
            self.resume_listener(index);
        }
        timeout
    }

    fn resume_listener(&mut self, index: usize) {
        self.listeners[index].paused_until = None;
        self.queue_accept(index as u32);
    }

    /// Queues an accept, if the listener should accept and has none.
    fn queue_accept(&mut self, index: u32) {
        let entry = &mut self.listeners[index as usize];
        if !entry.closing && !entry.held && !std::mem::replace(&mut entry.armed, true) {
            self.queue_submission(Kind::Accept, index, 0);
        }
    }

    pub(super) fn hold_accepting(&mut self, listener: ListenerId) {
        let Some(entry) = self.listeners.get_mut(listener.0 as usize) else {
            return;
        };
        if !std::mem::replace(&mut entry.held, true) && entry.armed && !entry.closing {
            self.queue_submission(Kind::HoldAccept, listener.0, 0);
        }
    }

    pub(super) fn accept_again(&mut self, listener: ListenerId) {
        let Some(entry) = self.listeners.get_mut(listener.0 as usize) else {
            return;
        };
        // If the accept is still armed, it is about to be cancelled; its last completion queues it
        // again.
        if std::mem::take(&mut entry.held) && entry.paused_until.is_none() {
            self.queue_accept(listener.0);
        }
    }

    pub(super) fn listen(&mut self, socket: ListenSocket) -> io::Result<ListenerId> {
        let ListenSocket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let index = self.listeners.len() as u32;
        self.listeners.push(Listener {
            socket: Some(socket),
            paused_until: None,
            held: false,
            armed: false,
            closing: false,
        });
        self.queue_accept(index);
        Ok(ListenerId(index))
    }

    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        let Some(entry) = self.listeners.get_mut(listener.0 as usize) else {
            return;
        };
        entry.paused_until = None;
        if !std::mem::replace(&mut entry.closing, true) {
            // First cancel the accept in the ring, in the next `poll_events`.
            self.queue_submission(Kind::Unlisten, listener.0, 0);
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listeners.iter().any(|l| l.socket.is_some())
    }

    pub(super) fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        let Socket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (receive, wanted, quiet_due) = (Receive::Off, false, false);
        let stream = |generation| Stream {
            socket: Some(socket),
            generation,
            receive,
            wanted,
            quiet_due,
            bulk: false,
            polls: 0,
            readable_due: false,
            token,
        };
        let index = match self.free.pop() {
            Some(index) => {
                let place = &mut self.streams[index as usize];
                *place = stream(place.generation);
                index
            }
            None => {
                self.streams.push(stream(0));
                self.streams.len() as u32 - 1
            }
        };
        let generation = self.streams[index as usize].generation;
        let id = StreamId { index, generation };
        self.fresh.push(id);
        Ok(id)
    }

    #[inline]
    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(id.index as usize)?;
        (stream.generation == id.generation && stream.socket.is_some()).then_some(stream)
    }

    #[inline]
    pub(super) fn descriptor(&self, id: StreamId) -> Option<BorrowedFd<'_>> {
        let stream = self.streams.get(id.index as usize)?;
        let fits = stream.generation == id.generation;
        stream.socket.as_ref().filter(|_| fits).map(AsFd::as_fd)
    }

    pub(super) fn receive(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        stream.wanted = true;
        (stream.quiet_due, stream.readable_due) = (false, false);
        if stream.receive == Receive::Off {
            self.arm(id);
        }
    }

    /// Begins a receive, multishot or after a poll.
    fn arm(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        if stream.bulk {
            stream.receive = Receive::Polled;
            self.poll(id, Kind::PollRead, POLL_READ);
        } else {
            stream.receive = Receive::Queued;
            self.queue_submission(Kind::Receive, id.index, id.generation);
        }
    }

    /// Arms streams again whose receive after a poll is done and that still want buffers.
    fn arm_again(&mut self) {
        let mut again = std::mem::take(&mut self.again);
        for id in again.drain(..) {
            let due = |stream: &&mut Stream| stream.wanted && stream.receive == Receive::Off;
            if self.stream(id).filter(due).is_some() {
                self.arm(id);
            }
        }
        self.again = again;
    }

    pub(super) fn pause(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.stream(id) else {
            return true;
        };
        stream.wanted = false;
        stream.bulk = true;
        match stream.receive {
            Receive::Off => !stream.quiet_due,
            Receive::Queued | Receive::Polled => {
                stream.receive = Receive::Off;
                true
            }
            Receive::Armed => {
                stream.receive = Receive::Cancelling;
                stream.quiet_due = true;
                self.queue_submission(Kind::Cancel, id.index, id.generation);
                false
            }
            Receive::Cancelling => {
                stream.quiet_due = true;
                false
            }
        }
    }

    pub(super) fn watch_end(&mut self, id: StreamId) {
        if self.stream(id).is_some_and(|stream| !stream.wanted) {
            self.poll(id, Kind::PollEnd, POLL_END);
        }
    }

    pub(super) fn recv(&mut self, id: StreamId, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        direct::recv(self.descriptor(id).ok_or_else(stale)?, into)
    }

    pub(super) fn want_read(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.readable_due = true;
            self.poll(id, Kind::PollRead, POLL_READ);
        }
    }

    fn poll(&mut self, id: StreamId, kind: Kind, bit: u8) {
        let Some(stream) = self.stream(id) else {
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
        let Some(stream) = self.stream(id) else {
            return;
        };
        let held =
            stream.polls != 0 || matches!(stream.receive, Receive::Armed | Receive::Cancelling);
        if let Some(socket) = self.remove(id)
            && held
        {
            // The kernel's operation holds the socket open: end it, or no FIN is sent.
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        self.descriptor_freed();
    }

    pub(super) fn reset(&mut self, id: StreamId) {
        if let Some(socket) = self.remove(id) {
            abort(socket);
            self.descriptor_freed();
        }
    }

    fn descriptor_freed(&mut self) {
        for index in 0..self.listeners.len() {
            if self.listeners[index].paused_until.is_some() {
                self.resume_listener(index);
            }
        }
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<Socket> {
        let polls = self.stream(id)?.polls;
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
        self.remove(id).map(Socket::Os)
    }

    fn remove(&mut self, id: StreamId) -> Option<OwnedFd> {
        let stream = self.stream(id)?;
        stream.generation = (stream.generation + 1) & 0xff_ffff;
        let socket = stream.socket.take();
        self.free.push(id.index);
        socket
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
        for stream in &mut self.streams {
            if let Some(socket) = stream.socket.take() {
                let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            }
        }
        // If that fails or takes too long, a receive may remain that writes to a buffer.
        let cancelled = self.cancel_everything();
        // Completes the cancelled operations, which releases the sockets they hold: a listener's
        // address is free when this returns.
        let let_go = self.enter(Some(Duration::ZERO));
        if cancelled.is_err() || let_go.is_err() {
            self.buffers.leak();
        }
        self.taken = 0;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Event;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// What an owner may do when the last bytes arrive together with the end of a cancelled
    /// receive.
    enum Then {
        Nothing,
        Close,
        Receive,
        PauseAgain,
    }

    /// The events after those bytes, or `None` where io_uring is refused.
    fn after_last_bytes(then: &Then) -> Option<Vec<Event>> {
        let mut driver = Setup::LADDER
            .iter()
            .find_map(|&setup| Uring::new(setup, &Config::default()).ok())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, _theirs) = pair.unwrap();
        let id = driver.attach(Socket::Os(ours), 1).unwrap();
        driver.receive(id);
        // As if armed and cancelled; the test plays the kernel's part, with the first buffer.
        driver.submissions.clear();
        driver.stream(id).unwrap().receive = Receive::Armed;
        assert!(!driver.pause(id));
        driver.submissions.clear();
        const BUFFER: u32 = 1;
        let event = driver.received(id.index, id.generation, 3, BUFFER);
        assert!(matches!(event, Some(Event::Data { data, .. }) if data.len() == 3));
        match then {
            Then::Nothing => {}
            Then::Close => driver.close(id),
            Then::Receive => driver.receive(id),
            Then::PauseAgain => assert!(!driver.pause(id), "a `Quiet` is due"),
        }
        Some(std::iter::from_fn(|| driver.next()).collect())
    }

    /// Drops the driver with a receive in the ring, and returns whether its posted blocks are used
    /// again. `None` where io_uring is refused.
    fn blocks_are_used_again(cancel_fails: Option<i32>) -> Option<bool> {
        let config = Config {
            ring_buffers: 4,
            ..Config::default()
        };
        let mut driver = Setup::LADDER
            .iter()
            .find_map(|&setup| Uring::new(setup, &config).ok())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.unwrap();
        let id = driver.attach(Socket::Os(ours), 1).unwrap();
        driver.receive(id);
        for _ in 0..3 {
            driver.poll_events(Some(Duration::ZERO)).unwrap();
            while driver.next().is_some() {}
        }
        assert_eq!(driver.stream(id).unwrap().receive, Receive::Armed);
        let posted = driver.buffers.addresses();
        assert_eq!(posted.len(), 4);
        let pool = driver.pool().clone();
        let used_bytes = pool.budget().used_bytes();
        driver.cancel_fails = cancel_fails;
        drop(driver);
        assert_eq!(pool.budget().used_bytes(), used_bytes, "kept, or leaked");
        let _ = rustix::io::write(&theirs, b"late");
        let blocks: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
        let again = |block: &crate::buf::Block| posted.contains(&block.as_ptr());
        assert!(blocks.iter().all(again) || !blocks.iter().any(again));
        Some(again(&blocks[0]))
    }

    #[test]
    fn buffers_that_the_kernel_may_still_have_are_leaked() {
        for (cancel_fails, again) in [
            (None, true),
            (Some(libc::ETIME), false),
            (Some(libc::EINVAL), false),
        ] {
            match blocks_are_used_again(cancel_fails) {
                Some(found) => assert_eq!(found, again, "{cancel_fails:?}"),
                None => println!("skipped: io_uring is refused"),
            }
        }
    }

    #[test]
    fn quiet_follows_the_last_bytes_unless_it_is_not_owed_any_more() {
        for (then, quiet) in [
            (Then::Nothing, 1),
            (Then::Close, 0),
            (Then::Receive, 0),
            (Then::PauseAgain, 1),
        ] {
            let Some(events) = after_last_bytes(&then) else {
                println!("skipped: io_uring is refused");
                return;
            };
            assert_eq!(events.len(), quiet, "{events:?}");
            assert!(events.iter().all(|e| matches!(e, Event::Quiet { .. })));
        }
    }
}
