//! The io_uring driver: multishot accept, multishot receive into ring-mapped buffers, one
//! `io_uring_enter` a turn.
//!
//! Submissions that name a stream's descriptor are built at the turn itself, from notes that carry
//! the stream's generation. So no submission can ever reach a descriptor number that was closed
//! and given to another connection in between. Completions carry the generation as well; those of
//! closed streams give their buffer back and mean nothing else.
//!
//! Modules, lowest first: `setup` · `submit` · `complete`. Must not know about the other drivers.

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

/// The one group of provided buffers.
const GROUP: u16 = 0;
const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 8192;

/// What a completion belongs to: `kind << 56 | generation << 32 | index`.
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
}

fn tag(kind: Kind, index: u32, generation: u32) -> u64 {
    (kind as u64) << 56 | u64::from(generation & 0xff_ffff) << 32 | u64::from(index)
}

/// The receive machine of one stream: Off → Armed → Cancelling → Off, and Off → Polled → Off.
///
/// A multishot receive takes a large body out of the socket, into many small buffers, before
/// anybody can say that there is a better place for it. So a stream whose owner paused it (for
/// that is what owners do who receive bodies themselves) is received from in the other way next
/// time, as epoll does it: told when it is readable, then one plain call, and the owner decides.
/// If it does not pause then, the one after that is multishot again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    /// The kernel holds no receive of this stream.
    Off,
    /// Wanted; noted for the next turn, or waiting for buffers.
    Queued,
    /// The kernel has it.
    Armed,
    /// The kernel was asked, or will be at the next turn, to give it up.
    Cancelling,
    /// A poll is noted or in the kernel; its completion is followed by a plain receive.
    Polled,
}

#[derive(Debug)]
struct Stream {
    socket: Option<OwnedFd>,
    generation: u32,
    receive: Receive,
    /// The owner wants *buffers*; while `Cancelling` this may be true again.
    wanted: bool,
    /// The owner is owed a `Quiet`.
    quiet_due: bool,
    /// The owner paused it since the last receive after a poll.
    bulk: bool,
    /// Polls noted or in the kernel: `POLL_READ`, `POLL_WRITE`.
    polls: u8,
    /// The owner is owed a `Readable`; a poll may outlive this.
    readable_due: bool,
    token: u64,
}

const POLL_READ: u8 = 1;
const POLL_WRITE: u8 = 2;

#[derive(Debug)]
struct Listener {
    socket: Option<OwnedFd>,
    /// Set while accepting is paused: when to try again.
    paused_until: Option<Instant>,
    /// Not to be accepted from before it is said.
    held: bool,
    /// The ring accepts, or will at the next turn; a cancelled one until its last completion.
    armed: bool,
    /// To be closed when nothing is queued there.
    closing: bool,
}

/// What to submit at the next turn.
#[derive(Clone, Copy, Debug)]
struct Submission {
    kind: Kind,
    index: u32,
    generation: u32,
}

/// See the module's description.
pub struct Uring {
    // The ring goes first when this is dropped: it ends every receive before the buffers go.
    ring: IoUring,
    buffers: BufferRing,
    streams: Vec<Stream>,
    free: Vec<u32>,
    listeners: Vec<Listener>,
    submissions: Vec<Submission>,
    /// Streams that were attached since the last turn. Most have sent something already, and many
    /// are closed before a receive by the ring is worth while.
    fresh: Vec<StreamId>,
    /// Streams that were received from after a poll: to be armed again unless they are paused.
    again: Vec<StreamId>,
    /// Streams whose receive ended for want of buffers.
    starved: Vec<StreamId>,
    wake_fd: Option<i32>,
    /// Listeners whose accept is cancelled, to be emptied by plain calls and closed.
    closing: Vec<u32>,
    /// Owed a `Quiet` before the next completion is looked at, unless it is closed or receives
    /// again by then.
    follow: Option<StreamId>,
    /// Completions taken since the last turn; a bound, so that the worker's tasks get their turn.
    taken: u32,
    /// What cancelling everything fails with.
    #[cfg(test)]
    cancel_fails: Option<i32>,
}

impl Uring {
    /// Builds a ring as `setup` says and registers its buffers (`io_uring_setup(2)`,
    /// `IORING_REGISTER_PBUF_RING`). Fails with what the kernel said.
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

    /// The pool that receives go to.
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

    /// Takes up listeners whose pause is over; gives the timeout shortened to the next such end.
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

    /// Has the ring accept, if it should and does not.
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
        // One that is armed still is about to be cancelled, and goes on when it was.
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
            // First the ring's accept is cancelled, at the next turn.
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

    /// Begins a receive, in the one way or the other.
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

    /// Arms what was received from after a poll and is still to be received from.
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
            // The kernel's operation holds the socket open: end it, or no FIN would go out.
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

/// Closes a socket with a reset, also while an operation of the ring still holds it open. Shutting
/// it down would send a FIN first, and the peer could take what it has for the whole.
fn abort(socket: OwnedFd) {
    // Disconnecting (connect(2), `AF_UNSPEC`) resets at once and wakes the ring's operation; only
    // TCP knows it. Should it fail, an orderly end is all that is left.
    let tcp = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).is_ok();
    if !tcp || rustix::net::connect_unspec(&socket).is_err() {
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    }
}

impl Uring {
    /// Ends every operation (`IORING_REGISTER_SYNC_CANCEL`, Linux 6.0), within a second.
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
                // There was none.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                result => return result,
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel must have let go of every buffer before they are freed: closing a ring only
        // begins that. Cancelling synchronously (Linux 6.0) ends it; before, closing sockets does.
        for stream in &mut self.streams {
            if let Some(socket) = stream.socket.take() {
                let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
            }
        }
        // Should that fail, or take too long, a receive may be left that writes to a buffer.
        let cancelled = self.cancel_everything();
        // Lets the cancelled operations go, and with them the sockets they hold: a listener's
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

    /// What an owner may do when the last bytes came together with the end of a cancelled receive.
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
        // As if armed and cancelled; the kernel's part is played here, with the first buffer.
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
            Then::PauseAgain => assert!(!driver.pause(id), "it is owed a `Quiet`"),
        }
        Some(std::iter::from_fn(|| driver.next()).collect())
    }

    /// With a receive in the ring, the driver is dropped: are the blocks that the kernel had been
    /// given used again? `None` where io_uring is refused.
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
