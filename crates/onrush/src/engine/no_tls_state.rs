//! Without the feature `tls`: the types of `tls_state.rs` without values.

use onrush_rt::buf::BufferPool;

#[derive(Debug)]
pub(crate) enum Tls {}

#[derive(Debug)]
pub(super) enum MovedTls {}

impl MovedTls {
    pub(super) fn resume(self, _: &BufferPool) -> Option<Tls> {
        match self {}
    }
}

impl Tls {
    pub(super) fn version(&self) -> Option<&'static str> {
        match *self {}
    }

    pub(super) fn received_bytes(&self) -> usize {
        match *self {}
    }

    pub(super) fn partial_record_bytes(&self) -> usize {
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
