//! Without the feature `tls`: no connection has records.

use super::{Sent, SocketIo};
use crate::engine::connection::Conn;
use crate::engine::connection::transport::{BodyTarget, Output};
use std::io;

impl SocketIo {
    pub(in crate::engine) fn receive_encrypted(
        &self,
        _: &mut Conn,
        _: BodyTarget<'_>,
        _: usize,
    ) -> (io::Result<usize>, bool) {
        (Err(io::ErrorKind::Unsupported.into()), false)
    }

    pub(in crate::engine) fn send_encrypted(
        &self,
        _: &mut Conn,
        _: Output<'_>,
    ) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::engine) fn encrypt_or_queue(
        &self,
        _: &mut Conn,
        _: &[u8],
        _: bool,
    ) -> io::Result<Sent> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::engine) fn send_close_notify(&self, _: &mut Conn) {}
}
