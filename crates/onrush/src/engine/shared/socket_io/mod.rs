//! Moves bytes between the connections of a worker and their sockets: as they are, or as TLS
//! records (`records`).

#[cfg(not(feature = "tls"))]
mod no_records;
#[cfg(feature = "tls")]
mod records;

use crate::engine::connection::Conn;
use crate::engine::connection::transport::{BodyTarget, Output};
use crate::engine::shared::exchange_log::ExchangeLog;
use crate::engine::shared::measurements::Measurements;
use onrush_rt::worker::WorkerContext;
#[cfg(feature = "tls")]
use records::RecordBuffers;
use std::io::{self, IoSlice};

/// The result of a send that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Sent {
    /// The kernel has accepted all of them.
    All,
    /// Bytes are queued until the socket is writable.
    Queued,
}

/// The error for a connection that is gone.
#[cold]
pub(in crate::engine) fn connection_gone() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// The sockets of the connections of one worker, and what is told about sent bytes.
pub(in crate::engine) struct SocketIo {
    context: WorkerContext,
    pub(in crate::engine) log: ExchangeLog,
    pub(in crate::engine) measurements: Measurements,
    #[cfg(feature = "tls")]
    pub(in crate::engine) buffers: RecordBuffers,
}

impl SocketIo {
    pub(in crate::engine) fn new(
        context: &WorkerContext,
        log: ExchangeLog,
        measurements: Measurements,
    ) -> SocketIo {
        SocketIo {
            context: context.clone(),
            log,
            measurements,
            #[cfg(feature = "tls")]
            buffers: RecordBuffers::default(),
        }
    }

    /// Sends without waiting; returns the number of bytes taken. `WouldBlock`: none, because the
    /// socket buffer is full. Nothing else may be queued in the connection.
    ///
    /// With TLS, the records of the bytes taken may be queued. The engine requests a `Writable`
    /// event for them.
    #[inline]
    pub(in crate::engine) fn send_output(
        &self,
        conn: &mut Conn,
        output: Output<'_>,
    ) -> io::Result<usize> {
        if conn.transport.is_tls() {
            return self.send_encrypted(conn, output);
        }
        let (mut driver, stream) = (self.context.driver(), conn.stream);
        match output {
            Output::Bytes(bytes) => driver.send(stream, bytes),
            Output::BytesAndMore(bytes) => driver.send_more(stream, bytes),
            Output::Both(first, second) => {
                driver.send_vectored(stream, &[IoSlice::new(first), IoSlice::new(second)])
            }
            Output::File(file, offset, bytes) => driver.send_file(stream, file, offset, bytes),
        }
    }

    /// Sends `out` and queues what the kernel does not accept.
    #[inline(always)]
    pub(in crate::engine) fn send_or_queue(&self, conn: &mut Conn, out: &[u8]) -> io::Result<Sent> {
        self.send_with::<false>(conn, out)
    }

    /// [`SocketIo::send_or_queue`] for the last bytes of a connection. They leave in one segment
    /// with the FIN, which saves the client a wake-up and both sides a packet.
    pub(in crate::engine) fn send_last_or_queue(
        &self,
        conn: &mut Conn,
        out: &[u8],
    ) -> io::Result<Sent> {
        self.send_with::<true>(conn, out)
    }

    #[inline(always)]
    fn send_with<const IS_LAST: bool>(&self, conn: &mut Conn, out: &[u8]) -> io::Result<Sent> {
        self.measurements.record(); // First, so that a client finds its last request there.
        if conn.transport.is_tls() {
            return self.encrypt_or_queue(conn, out, IS_LAST);
        }
        if conn
            .active
            .as_ref()
            .is_some_and(|active| !active.wire.unsent().is_empty())
        {
            conn.active().wire.queue_output(out);
            return Ok(Sent::Queued);
        }
        if out.is_empty() {
            return Ok(Sent::All);
        }
        let sent = match IS_LAST {
            true => self.context.driver().send_more(conn.stream, out),
            false => self.context.driver().send(conn.stream, out),
        };
        match sent {
            Ok(sent) if sent == out.len() && !self.log.is_on() => Ok(Sent::All),
            sent => self.queue_rest(conn, out, sent),
        }
    }

    /// Queues what the kernel did not accept of `out`.
    #[inline(never)]
    pub(in crate::engine) fn queue_rest(
        &self,
        conn: &mut Conn,
        out: &[u8],
        sent: io::Result<usize>,
    ) -> io::Result<Sent> {
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if self.log.is_on() {
            self.log.accepted(conn, sent);
        }
        if sent == out.len() {
            return Ok(Sent::All);
        }
        let active = conn.active();
        active.wire.out.clear();
        active.wire.out.extend_from_slice(&out[sent..]);
        active.wire.out_sent = 0;
        self.context.driver().want_write(conn.stream);
        Ok(Sent::Queued)
    }

    /// Receives up to `bytes_max` bytes of a body without waiting, while the driver is paused.
    /// Returns the number of bytes, 0 at the end of the stream, and whether the socket is empty
    /// now.
    pub(in crate::engine) fn receive_body(
        &self,
        conn: &mut Conn,
        target: BodyTarget<'_>,
        bytes_max: usize,
    ) -> (io::Result<usize>, bool) {
        if conn.transport.is_tls() {
            return self.receive_encrypted(conn, target, bytes_max);
        }
        let room = target.room().min(bytes_max);
        let (mut driver, stream) = (self.context.driver(), conn.stream);
        let result = match target {
            BodyTarget::Append(into) => driver.recv_append(stream, into, bytes_max),
            BodyTarget::Discard(memory) => driver.discard(stream, &mut memory[..room]),
        };
        let emptied = result.as_ref().is_ok_and(|&bytes| bytes < room);
        (result, emptied)
    }

    pub(in crate::engine) fn set_low_water(&self, conn: &mut Conn, bytes: u32) {
        let stream = conn.stream;
        let active = conn.active();
        if active.wire.low_water.max(1) != bytes {
            active.wire.low_water = bytes;
            self.context.driver().set_low_water(stream, bytes);
        }
    }
}
