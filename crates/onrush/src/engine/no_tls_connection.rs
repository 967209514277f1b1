//! Without the feature `tls`: the types of `tls_connection.rs` without values.

use onrush_rt::buf::BufferPool;

#[derive(Debug)]
pub(crate) enum Tls {}

#[derive(Debug)]
pub(super) enum MovedTls {}

#[derive(Debug)]
pub(super) struct SessionMemory;

impl MovedTls {
    pub(super) fn received(&self) -> usize {
        match *self {}
    }

    pub(super) fn resume(self, _: &BufferPool, _: &SessionMemory) -> Result<Tls, Box<MovedTls>> {
        match self {}
    }
}

impl Tls {
    pub(super) fn version(&self) -> Option<&'static str> {
        match *self {}
    }

    pub(super) fn client_subject(&self) -> Option<String> {
        match *self {}
    }

    pub(super) fn is_waiting(&self) -> bool {
        match *self {}
    }

    pub(super) fn is_delivering(&self) -> bool {
        match *self {}
    }

    pub(super) fn received_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn received_len(&self) -> usize {
        match *self {}
    }

    pub(super) fn drop_received(&mut self) {
        match *self {}
    }

    pub(super) fn forget_unsent(&mut self) {
        match *self {}
    }

    pub(super) fn unsent_response_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn accepted_response_bytes(&mut self, _: usize) -> usize {
        match *self {}
    }
}
