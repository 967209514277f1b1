//! Completions: turns the entries of the kernel's queue into events, one at a time.
//!
//! Does not build submissions; it queues what is to be submitted.
#![allow(unsafe_code)]

use super::{COMPLETIONS, Kind, POLL_END, POLL_READ, POLL_WRITE, Receive};
use super::{Slot, Uring, decode_user_data, user_data};
use crate::buf::{Block, Buf};
use crate::driver::{Event, StreamId, direct};
use io_uring::cqueue;
use rustix::fd::AsFd;
use std::io;

impl Uring {
    #[inline]
    pub(in crate::driver) fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(id) = self.next_stopped.take()
                && let Some(event) = self.take_stopped_event(id)
            {
                return Some(event);
            }
            // First accept everything that is queued at a closing listener. The queue ends, because
            // its clients get no response until then and so do not connect again.
            if let Some(event) = self.accept_rest().or_else(|| self.next_unsubmitted()) {
                return Some(event);
            }
            // Alternately, so that neither delays the other.
            if self.starved_next
                && let Some(event) = self.next_starved()
            {
                return Some(event);
            }
            let entry = match self.taken < COMPLETIONS {
                true => self.ring.completion().next(),
                false => None,
            };
            let Some(entry) = entry else {
                return self.next_starved().or_else(|| self.next_accepted());
            };
            self.taken += 1;
            self.starved_next = !self.starved.is_empty();
            let (result, flags, data) = (entry.result(), entry.flags(), entry.user_data());
            let (kind, index, generation) = decode_user_data(data);
            let event = match kind {
                Some(Kind::Receive) => self.on_receive(index, generation, result, flags),
                Some(Kind::Accept) => self.on_accept(index, result, flags),
                Some(Kind::PollRead) => self.on_poll(index, generation, false),
                Some(Kind::PollWrite) => self.on_poll(index, generation, true),
                Some(Kind::PollEnd) => self.on_poll_end(index, generation, flags),
                Some(Kind::Wake) => {
                    if !cqueue::more(flags) {
                        self.queue_submission(Kind::Wake, 0, 0);
                    }
                    None
                }
                Some(Kind::Unlisten) => {
                    self.closing.push(index);
                    None
                }
                // Result of a cancel request. The cancelled operation posts its own completion.
                _ => None,
            };
            if event.is_some() {
                return event;
            }
        }
    }

    /// Whether the completion queue holds received bytes of this stream. Scans all
    /// unprocessed completions.
    pub(in crate::driver) fn has_completed_receive(&mut self, id: StreamId) -> bool {
        let in_kernel =
            |stream: &mut Slot| matches!(stream.receive, Receive::Armed | Receive::Cancelling);
        if !self.streams.get_mut(id).is_some_and(in_kernel) {
            return false;
        }
        let data = user_data(Kind::Receive, id.index, id.generation);
        let mut completions = self.ring.completion();
        let found = completions.any(|entry| entry.user_data() == data && entry.result() > 0);
        // Dropping this view would mark the entries as processed.
        std::mem::forget(completions);
        found
    }

    /// Receives by a direct system call what a stream sent before it was attached.
    fn next_unsubmitted(&mut self) -> Option<Event> {
        while let Some(id) = self.unsubmitted_streams.pop() {
            let due = |stream: &&mut Slot| stream.receive == Receive::Queued;
            if self.streams.get_mut(id).filter(due).is_none() {
                continue;
            }
            // No block left: stop. The multishot receive queued for this stream waits for a buffer.
            match self.receive_block(id)? {
                Ok(data) if !data.is_empty() => return self.data(id, data),
                // The end of the stream is reported again by a later receive; an error is not.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return self.end(id, Err(error));
                }
                _ => {}
            }
        }
        None
    }

    /// Receives by a direct system call for the stream that has waited longest for a buffer.
    /// `None`: no stream waits, or the pool has no block.
    fn next_starved(&mut self) -> Option<Event> {
        self.starved_next = false;
        while let Some(&id) = self.starved.front() {
            let due = |stream: &&mut Slot| stream.receive == Receive::Starved;
            if self.streams.get_mut(id).filter(due).is_none() {
                self.starved.pop_front();
                continue;
            }
            let received = self.receive_block(id);
            self.out_of_blocks = received.is_none();
            let received = received?;
            self.starved.pop_front();
            match received {
                Ok(data) if !data.is_empty() => {
                    self.streams.get_mut(id)?.receive = Receive::Off;
                    self.rearm.push(id);
                    return self.data(id, data);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.streams.get_mut(id)?.receive = Receive::Queued;
                    self.queue_submission(Kind::Receive, id.index, id.generation);
                }
                end => return self.end(id, end.map(drop)),
            }
        }
        None
    }

    /// Receives by a direct system call into a block of the pool; an empty buffer is the end of the
    /// stream. `None`: the pool has no block.
    fn receive_block(&mut self, id: StreamId) -> Option<io::Result<Buf>> {
        let block = self.buffers.pool().take()?;
        Some(self.receive_into(id, block))
    }

    fn receive_into(&mut self, id: StreamId, mut block: Block) -> io::Result<Buf> {
        // SAFETY: recv(2) writes initialised bytes only.
        let room = unsafe { crate::sys::writable(block.spare()) };
        let bytes = self.recv(id, room)?;
        block.advance(bytes);
        Ok(block.into_buf())
    }

    fn data(&mut self, id: StreamId, data: Buf) -> Option<Event> {
        Some(Event::Data {
            stream: id,
            token: self.streams.get_mut(id)?.token,
            data,
        })
    }

    /// Stops receiving and reports `End`.
    fn end(&mut self, id: StreamId, result: io::Result<()>) -> Option<Event> {
        let stream = self.streams.get_mut(id)?;
        (stream.receive, stream.wanted) = (Receive::Off, false);
        (stream.stopped_event_due, stream.end_wanted) = (false, false);
        Some(Event::End {
            stream: id,
            token: stream.token,
            result,
        })
    }

    #[inline]
    pub(super) fn on_receive(
        &mut self,
        index: u32,
        generation: u32,
        result: i32,
        flags: u32,
    ) -> Option<Event> {
        let data = cqueue::buffer_select(flags).map(|id| self.buffers.take(id, result.max(0)));
        let id = StreamId { index, generation };
        let is_last_completion = !cqueue::more(flags);
        let stream = self.streams.get_mut(id)?; // Dropping the buffer, if any, returns it.
        let token = stream.token;
        if result > 0 {
            if is_last_completion {
                self.receive_ended(id);
            }
            return Some(Event::Data {
                stream: id,
                token,
                data: data?,
            });
        }
        if !is_last_completion {
            return None;
        }
        match -result {
            libc::ENOBUFS => {
                if stream.receive == Receive::Armed {
                    stream.receive = Receive::Starved;
                    crate::diagnose!(DEBUG, stream = id.index;
                        "no receive buffer is posted, the stream waits");
                    self.starved.push_back(id);
                    self.poll(id, Kind::PollEnd, POLL_END);
                    return None;
                }
                self.receive_ended(id);
                None
            }
            libc::EINTR | libc::EAGAIN | libc::ECANCELED => {
                self.receive_ended(id);
                None
            }
            errno => {
                let result = match errno {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                };
                self.end(id, result)
            }
        }
    }

    /// The multishot receive ended, but the stream did not. Arms it again if it is wanted.
    fn receive_ended(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        stream.receive = Receive::Off;
        if stream.wanted {
            self.arm(id);
        } else {
            self.next_stopped = Some(id); // After the data of this completion.
        }
    }

    /// Reports the end of the receive that `pause` cancelled.
    fn take_stopped_event(&mut self, id: StreamId) -> Option<Event> {
        let stream = self.streams.get_mut(id)?;
        let token = stream.token;
        let due = std::mem::take(&mut stream.stopped_event_due);
        if due && stream.end_wanted {
            // The poll for the end may have completed while the receive was being cancelled.
            let end = direct::find_end(stream.socket.as_ref()?.as_fd());
            if let Some(end) = end {
                return self.end(id, end);
            }
            self.poll(id, Kind::PollEnd, POLL_END);
        }
        due.then_some(Event::ReceiveStopped { stream: id, token })
    }

    fn on_poll(&mut self, index: u32, generation: u32, write: bool) -> Option<Event> {
        let id = StreamId { index, generation };
        let stream = self.streams.get_mut(id)?;
        let token = stream.token;
        stream.polls &= !(if write { POLL_WRITE } else { POLL_READ });
        if !write && stream.receive == Receive::Polled {
            return self.receive_polled(id);
        }
        if !write && !std::mem::take(&mut stream.readable_due) {
            return None; // `receive` has cancelled the request for `Readable`.
        }
        Some(if write {
            Event::Writable { stream: id, token }
        } else {
            Event::Readable { stream: id, token }
        })
    }

    /// The peer of a stream ended it, or the connection failed. Reported only while the stream is
    /// paused or waits for memory: a receive and an awaited `Readable` report it by themselves.
    #[cold]
    fn on_poll_end(&mut self, index: u32, generation: u32, flags: u32) -> Option<Event> {
        let id = StreamId { index, generation };
        let stream = self.streams.get_mut(id)?;
        if !cqueue::more(flags) {
            stream.polls &= !POLL_END;
        }
        let is_paused = stream.end_wanted
            && !stream.wanted
            && !stream.readable_due
            && stream.receive == Receive::Off;
        let waits_for_memory = stream.receive == Receive::Starved;
        if !is_paused && !waits_for_memory {
            return None;
        }
        let end = direct::find_end(stream.socket.as_ref()?.as_fd());
        if let Some(end) = end {
            return self.end(id, end);
        }
        if is_paused {
            stream.half_closed = true;
            self.poll(id, Kind::PollEnd, POLL_END);
            return None;
        }
        // Receive the bytes before the end into the one block that may exceed the budget
        // (`take_last`). The next receive waits for memory again, and polls again.
        let last = waits_for_memory.then(|| self.buffers.pool().take_last())??;
        let received = self.receive_into(id, last);
        self.streams.get_mut(id)?.receive = Receive::Off;
        self.rearm.push(id);
        match received {
            Ok(data) if !data.is_empty() => self.data(id, data),
            _ => None,
        }
    }

    /// A direct receive for a stream that became readable.
    fn receive_polled(&mut self, id: StreamId) -> Option<Event> {
        let received = self.receive_block(id);
        let stream = self.streams.get_mut(id)?;
        (stream.receive, stream.poll_before_receive) = (Receive::Off, false);
        match received {
            Some(Ok(data)) if !data.is_empty() => {
                self.rearm.push(id);
                self.data(id, data)
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                self.arm(id);
                None
            }
            Some(end) => self.end(id, end.map(drop)),
            None => {
                self.arm(id); // The ring's own receive waits for a buffer.
                None
            }
        }
    }
}
