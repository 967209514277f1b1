//! Without the feature `tls`: no connection uses TLS.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::lifecycle::Engine;
use crate::engine::open::{OpenConn, OpenConns};
use crate::metrics::CloseReason;
use onrush_rt::buf::Buf;
use onrush_rt::worker::Notifier;
use std::rc::Rc;

impl OpenConns {
    pub(super) fn has_failed(&self, _: ConnId) -> bool {
        false
    }
}

impl OpenConn<'_> {
    pub(super) fn start_tls(&mut self) {}
}

impl Engine {
    pub(super) fn uses_tls(&self, _: usize) -> bool {
        match self.settings.tls {
            None => false,
            Some(impossible) => match impossible {},
        }
    }

    pub(super) fn admits_client(&self, _: ConnId) -> bool {
        true
    }

    pub(crate) fn watch_clients(&self, _: Notifier) -> impl Sized + use<> {}

    pub(super) fn end_clients(self: &Rc<Self>) {}

    pub(super) fn on_records(self: &Rc<Self>, _: ConnId, _: Buf) {}

    pub(super) fn list_partial_record(self: &Rc<Self>, _: ConnId) {}

    pub(super) fn close_tls(&self, _: &mut Conn, _: CloseReason) {}

    pub(super) fn fail_tls(&self, _: ConnId) {}

    pub(super) fn on_handshake_timeout(&self, _: ConnId) {}
}
