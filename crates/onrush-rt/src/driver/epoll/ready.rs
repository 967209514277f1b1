//! Streams that are known to be ready: what is received from them, and which events they yield.
//!
//! Does not depend on listeners.

use super::{Epoll, READ, event_data, flag};
use crate::buf::Block;
use crate::driver::{Event, StreamId, direct};
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::AsFd;
use std::io;

impl Epoll {
    /// The end of a stream that is not received from, because its owner has paused it or because
    /// the receive memory is used up.
    #[cold]
    pub(super) fn give_end(&mut self, index: u32) -> Option<Event> {
        let stream = &mut self.streams[index];
        // A stream in *buffers* that is still queued waits for memory.
        let waits_for_memory = flag::BUFFERS | flag::QUEUED;
        let is_due = stream.flags & flag::WATCHES_END != 0
            || stream.flags & waits_for_memory == waits_for_memory;
        let end = direct::find_end(stream.socket.as_ref().filter(|_| is_due)?.as_fd())?;
        stream.flags &= !(flag::BUFFERS | flag::READABLE | flag::WATCHES_END);
        Some(Event::End {
            stream: StreamId {
                index,
                generation: stream.generation,
            },
            token: stream.token,
            result: end,
        })
    }

    /// Turns known readability into the event that the owner requested.
    #[inline]
    pub(super) fn report_readable(&mut self, index: u32) -> Option<Event> {
        let stream = &mut self.streams[index];
        if stream.flags & flag::BUFFERS != 0 {
            return self.receive_now(index);
        }
        if stream.flags & flag::WANT_READ != 0 {
            stream.flags &= !flag::WANT_READ;
            let (token, generation) = (stream.token, stream.generation);
            return Some(Event::Readable {
                stream: StreamId { index, generation },
                token,
            });
        }
        None
    }

    #[inline]
    fn receive_now(&mut self, index: u32) -> Option<Event> {
        let Some(mut block) = self.pool.take().or_else(|| self.take_last_block(index)) else {
            self.queue(index);
            return None;
        };
        let stream = &mut self.streams[index];
        let (token, generation) = (stream.token, stream.generation);
        let id = StreamId { index, generation };
        let fd = stream.socket.as_ref()?.as_fd();
        // SAFETY: recv(2) writes initialised bytes only.
        #[allow(unsafe_code)]
        let room = unsafe { crate::sys::writable(block.spare()) };
        match direct::recv(fd, room) {
            Ok(0) => {
                stream.flags &= !(flag::BUFFERS | flag::READABLE);
                Some(Event::End {
                    stream: id,
                    token,
                    result: Ok(()),
                })
            }
            Ok(n) => {
                let more = n == block.capacity() || stream.flags & flag::PEER_ENDED != 0;
                if more {
                    self.queue(index);
                } else {
                    stream.flags &= !flag::READABLE;
                }
                block.advance(n);
                Some(Event::Data {
                    stream: id,
                    token,
                    data: Block::into_buf(block),
                })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.flags &= !flag::READABLE;
                None
            }
            Err(error) => {
                stream.flags &= !(flag::BUFFERS | flag::READABLE);
                Some(Event::End {
                    stream: id,
                    token,
                    result: Err(error),
                })
            }
        }
    }

    /// A block for a stream when the budget is used up. `None`: the stream has to wait. A stream
    /// whose peer has gone does not wait, so that its end is noticed: the one block that may exceed
    /// the budget takes its last bytes, and then its end.
    #[cold]
    fn take_last_block(&mut self, index: u32) -> Option<Block> {
        let ended = self.streams[index].flags & flag::PEER_ENDED != 0;
        let block = ended.then(|| self.pool.take_last()).flatten();
        if block.is_none() && !self.starved {
            crate::diagnose!(DEBUG, stream = index; "receive memory is used up, streams wait");
        }
        self.starved |= block.is_none();
        block
    }

    pub(super) fn report_writable(&mut self, id: StreamId) -> Option<Event> {
        let stream = self.streams.get_mut(id)?;
        if stream.flags & flag::WANT_WRITE == 0 {
            return None;
        }
        stream.flags &= !flag::WANT_WRITE;
        Some(Event::Writable {
            stream: id,
            token: stream.token,
        })
    }

    pub(super) fn queue(&mut self, index: u32) {
        let stream = &mut self.streams[index];
        if stream.flags & flag::QUEUED == 0 {
            stream.flags |= flag::QUEUED;
            self.ready.push_back(index);
        }
    }

    /// [`Epoll::queue`], if the stream may be readable and is not in the list of fresh streams.
    pub(super) fn queue_known(&mut self, index: u32) {
        let flags = self.streams[index].flags;
        if flags & flag::READABLE != 0 && flags & flag::FRESH == 0 {
            self.queue(index);
        }
    }

    /// Yields events of streams known to be readable, after the kernel's events, round robin. At
    /// most one pass per iteration, so that a busy stream cannot keep the worker from the kernel.
    pub(super) fn next_ready(&mut self) -> Option<Event> {
        while self.ready_left > 0 {
            self.ready_left -= 1;
            let index = self.ready.pop_front()?;
            let stream = &mut self.streams[index];
            if self.starved && stream.flags & flag::PEER_ENDED == 0 {
                self.ready.push_back(index); // It keeps its place in the queue.
                continue;
            }
            stream.flags &= !flag::QUEUED;
            if stream.socket.is_none() || stream.flags & flag::READABLE == 0 {
                continue;
            }
            if stream.is_lost() && stream.flags & flag::WANT_WRITE != 0 {
                let generation = stream.generation;
                self.queue(index);
                return self.report_writable(StreamId { index, generation });
            }
            let watches_end = stream.flags & flag::WATCHES_END != 0;
            let mut event = self.report_readable(index);
            if watches_end && event.is_none() {
                event = self.give_end(index);
            }
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Processes streams attached in this iteration, most of which have sent something already.
    pub(super) fn next_fresh(&mut self) -> Option<Event> {
        while self.fresh_taken < self.fresh.len() {
            let index = self.fresh[self.fresh_taken];
            self.fresh_taken += 1;
            let stream = &mut self.streams[index];
            let is_fresh = stream.flags & flag::FRESH != 0;
            stream.flags &= !flag::FRESH;
            if stream.socket.is_some()
                && is_fresh
                && let Some(event) = self.report_readable(index)
            {
                return Some(event);
            }
        }
        None
    }

    /// Registers the streams attached since the last wait that are still open.
    pub(super) fn watch_fresh(&mut self) {
        self.fresh_taken = 0;
        while let Some(index) = self.fresh.pop() {
            let stream = &mut self.streams[index];
            stream.flags &= !flag::FRESH;
            let (Some(socket), 0) = (&stream.socket, stream.flags & flag::WATCHED) else {
                continue;
            };
            let writes = stream.flags & flag::WATCHES_WRITE != 0;
            let flags = if writes { READ | EventFlags::OUT } else { READ };
            // Bytes that came meanwhile are reported at once, so no edge is missed.
            if epoll::add(
                &self.epoll,
                socket,
                event_data(index, stream.generation),
                flags,
            )
            .is_ok()
            {
                stream.flags |= flag::WATCHED;
            } else {
                // No memory, or too many watched files (epoll(7)): end the stream and report it.
                crate::diagnose!(DEBUG, stream = index; "epoll_ctl failed, the stream is ended");
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
                stream.flags |= flag::READABLE | flag::PEER_ENDED;
                self.queue(index);
            }
        }
    }
}
