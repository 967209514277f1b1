//! Without the feature `tls`: the types of `tls_connection.rs` without values.

use onrush_rt::buf::BufferPool;

#[derive(Debug)]
pub(crate) enum Tls {}

#[derive(Debug)]
pub(in crate::engine) enum MovedTls {}

#[derive(Debug)]
pub(in crate::engine) struct SessionMemory;

impl MovedTls {
    pub(in crate::engine) fn received(&self) -> usize {
        match *self {}
    }

    pub(in crate::engine) fn resume(
        self,
        _: &BufferPool,
        _: &SessionMemory,
    ) -> Result<Tls, Box<MovedTls>> {
        match self {}
    }
}

impl Tls {
    pub(in crate::engine) fn into_moved(self) -> Option<MovedTls> {
        match self {}
    }

    pub(in crate::engine) fn version(&self) -> Option<&'static str> {
        match *self {}
    }

    pub(in crate::engine) fn client_subject(&self) -> Option<String> {
        match *self {}
    }

    pub(in crate::engine) fn is_waiting(&self) -> bool {
        match *self {}
    }

    pub(in crate::engine) fn is_delivering(&self) -> bool {
        match *self {}
    }

    pub(in crate::engine) fn received_bytes(&self) -> usize {
        match *self {}
    }

    pub(in crate::engine) fn received_len(&self) -> usize {
        match *self {}
    }

    pub(in crate::engine) fn drop_received(&mut self) {
        match *self {}
    }

    pub(in crate::engine) fn forget_unsent(&mut self) {
        match *self {}
    }

    pub(in crate::engine) fn unsent_response_bytes(&self) -> usize {
        match *self {}
    }

    pub(in crate::engine) fn accepted_response_bytes(&mut self, _: usize) -> usize {
        match *self {}
    }
}
