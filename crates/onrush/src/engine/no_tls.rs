//! Without the feature `tls`: the types of `tls.rs` without values, so no connection uses them.

use super::Engine;
use super::connection::Conn;
use super::request_body::BodyTarget;
use super::send::Sent;
use super::transport::Output;
use crate::host::ConnId;
use crate::metrics::CloseReason;
use onrush_rt::buf::{Buf, BufferPool};
use std::io;
use std::rc::Rc;

#[derive(Clone, Copy, Debug)]
pub(crate) enum TlsSettings {}

#[derive(Debug)]
pub(crate) enum Tls {}

#[derive(Debug)]
pub(super) enum MovedTls {}

#[derive(Debug)]
pub(super) struct TlsState;

impl TlsState {
    pub(super) fn new() -> TlsState {
        TlsState
    }
}

impl MovedTls {
    pub(super) fn resume(self, _: &BufferPool) -> Option<Tls> {
        match self {}
    }
}

impl Tls {
    pub(super) fn received_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn has_begun(&self) -> bool {
        match *self {}
    }

    pub(super) fn drop_received(&mut self) {
        match *self {}
    }

    pub(super) fn unsent_response_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn accepted_response_bytes(&mut self, _: usize) -> usize {
        match *self {}
    }
}

impl Engine {
    pub(super) fn uses_tls(&self, _: usize) -> bool {
        let TlsState = self.tls;
        match self.settings.tls {
            None => false,
            Some(impossible) => match impossible {},
        }
    }

    pub(super) fn start_tls(&self, _: ConnId, _: &mut Conn) {}

    pub(super) fn on_records(self: &Rc<Self>, _: ConnId, _: Buf) {}

    pub(super) fn close_tls(&self, _: &mut Conn, _: CloseReason) {}

    pub(super) fn receive_encrypted(
        &self,
        _: &mut Conn,
        _: BodyTarget<'_>,
        _: usize,
    ) -> (io::Result<usize>, bool) {
        (Err(io::ErrorKind::Unsupported.into()), false)
    }

    pub(super) fn send_encrypted(&self, _: &mut Conn, _: Output<'_>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn encrypt_or_queue(&self, _: &mut Conn, _: Output<'_>) -> io::Result<Sent> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn send_close_notify(&self, _: &mut Conn) {}

    pub(super) fn on_handshake_timeout(&self, _: ConnId) {}

    pub(super) fn move_tls(_: &mut Conn) -> Option<MovedTls> {
        None
    }
}
