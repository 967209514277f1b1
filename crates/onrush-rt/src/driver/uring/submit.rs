//! Submissions: built from the queue right before they are submitted, so that each names an open
//! descriptor.
//!
//! Does not interpret completions.
#![allow(unsafe_code)]

use super::accept::accepted_max;
use super::{GROUP, Kind, Receive, Slot, Submission, Uring, user_data};
use crate::driver::StreamId;
use io_uring::{EnterFlags, opcode, squeue, types};
use rustix::fd::AsRawFd;
use std::io;
use std::time::Duration;

impl Uring {
    pub(in crate::driver) fn poll_events(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = self.resume_listeners(timeout);
        self.buffers.refill();
        let mut timeout = self.resume_starved(timeout);
        self.accepted_left = accepted_max(self.accepted.len());
        if !self.accepted.is_empty() {
            timeout = Some(Duration::ZERO);
        }
        self.arm_again();
        self.submit_queued()?;
        self.unsubmitted_streams.clear(); // Their receives are in the ring now.
        self.taken = 0;
        self.enter(timeout)
    }

    /// Returns the time to wait for events. If the pool has blocks for starved streams, direct
    /// receives serve them. If all blocks are posted, the ring does, for as many streams as there
    /// are blocks; their receives are queued here.
    fn resume_starved(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.out_of_blocks = false;
        if self.starved.is_empty() {
            return timeout;
        }
        if self.buffers.pool().take().is_some() {
            return Some(Duration::ZERO);
        }
        let mut blocks = self.buffers.posted();
        while blocks > 0
            && let Some(id) = self.starved.pop_front()
        {
            let starved = |stream: &&mut Slot| stream.receive == Receive::Starved;
            if let Some(stream) = self.streams.get_mut(id).filter(starved) {
                stream.receive = Receive::Queued;
                self.queue_submission(Kind::Receive, id.index, id.generation);
                blocks -= 1;
            }
        }
        // No block was freed: check again in a moment instead of spinning.
        let moment = Duration::from_millis(1);
        Some(timeout.map_or(moment, |t| t.min(moment)))
    }

    pub(super) fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let pending = self.ring.submission().len() as u32;
        let want = u32::from(timeout != Some(Duration::ZERO));
        let mut flags = EnterFlags::GETEVENTS;
        let spec = timeout.filter(|_| want > 0).map(types::Timespec::from);
        let submitter = self.ring.submitter();
        let result = match &spec {
            Some(spec) => {
                flags.insert(EnterFlags::EXT_ARG);
                let args = types::SubmitArgs::new().timespec(spec);
                // SAFETY: the argument is of the kind that EXT_ARG names and outlives the call.
                unsafe { submitter.enter(pending, want, flags.bits(), Some(&args)) }
            }
            // SAFETY: no argument goes with these flags.
            None => unsafe { submitter.enter::<libc::sigset_t>(pending, want, flags.bits(), None) },
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The timeout expired, a signal came, or completions must be taken first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Builds the queued submissions that are still valid.
    fn submit_queued(&mut self) -> io::Result<()> {
        let mut submissions = std::mem::take(&mut self.submissions);
        let mut done = 0;
        let mut room = Ok(true);
        for &submission in &submissions {
            room = self.make_room();
            if !matches!(room, Ok(true)) {
                break;
            }
            if let Some(entry) = self.build(submission) {
                self.push(&entry);
            }
            done += 1;
        }
        submissions.drain(..done); // The rest waits for the next call.
        self.submissions = submissions;
        room.map(drop)
    }

    fn build(&mut self, submission: Submission) -> Option<squeue::Entry> {
        let Submission {
            kind,
            index,
            generation,
        } = submission;
        let user_data = user_data(kind, index, generation);
        let entry = match kind {
            Kind::Wake => {
                let fd = types::Fd(self.wake_fd?);
                opcode::PollAdd::new(fd, libc::POLLIN as u32)
                    .multi(true)
                    .build()
            }
            Kind::Accept => {
                let listener = &mut self.listeners[index as usize];
                if listener.closing || listener.held {
                    listener.armed = false;
                    return None;
                }
                let fd = types::Fd(listener.socket.as_ref()?.as_raw_fd());
                let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
                opcode::AcceptMulti::new(fd).flags(flags).build()
            }
            Kind::Receive => {
                let stream = self.streams.get_mut(StreamId { index, generation })?;
                if stream.receive != Receive::Queued {
                    return None;
                }
                stream.receive = Receive::Armed;
                let fd = types::Fd(stream.socket.as_ref()?.as_raw_fd());
                opcode::RecvMulti::new(fd, GROUP).build()
            }
            Kind::Cancel => {
                let stream = self.streams.get_mut(StreamId { index, generation })?;
                if stream.receive != Receive::Cancelling {
                    return None;
                }
                cancel(Kind::Receive, index, generation)
            }
            Kind::Unlisten | Kind::HoldAccept => cancel(Kind::Accept, index, 0),
            Kind::ForgetRead => cancel(Kind::PollRead, index, generation),
            Kind::ForgetWrite => cancel(Kind::PollWrite, index, generation),
            Kind::ForgetEnd => cancel(Kind::PollEnd, index, generation),
            Kind::PollRead | Kind::PollWrite | Kind::PollEnd => {
                let stream = self.streams.get_mut(StreamId { index, generation })?;
                let fd = types::Fd(stream.socket.as_ref()?.as_raw_fd());
                let events = match kind {
                    Kind::PollRead => libc::POLLIN,
                    Kind::PollWrite => libc::POLLOUT,
                    _ => libc::POLLRDHUP,
                };
                // `POLLRDHUP` holds for good after the peer's end, and io_uring adds it to every
                // poll. A multishot poll completes again when something changes.
                let multi = kind == Kind::PollEnd && stream.half_closed;
                opcode::PollAdd::new(fd, events as u32).multi(multi).build()
            }
        };
        Some(entry.user_data(user_data))
    }

    /// Submits early when the queue is full. `false`: the kernel accepts no submissions until
    /// completions have been taken, or because it has no memory.
    fn make_room(&mut self) -> io::Result<bool> {
        while self.ring.submission().is_full() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EBUSY | libc::EAGAIN) => return Ok(false),
                    _ => return Err(error),
                },
            }
        }
        Ok(true)
    }

    /// Call this only after `make_room` returned `true`.
    pub(super) fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: no operation that this driver submits refers to memory of its own; receives
        // go to ring buffers, which stay mapped as long as the ring lives.
        let pushed = unsafe { self.ring.submission().push(entry) };
        debug_assert!(pushed.is_ok(), "there was room");
    }
}

fn cancel(kind: Kind, index: u32, generation: u32) -> squeue::Entry {
    opcode::AsyncCancel::new(user_data(kind, index, generation)).build()
}
