//! Without the feature `tls`: no connection has a handshake.

use crate::engine::connection::tls_connection::SessionMemory;

#[derive(Clone, Copy, Debug)]
pub(crate) enum TlsSettings {}

#[derive(Debug)]
pub(in crate::engine) struct WorkerTls {
    pub(in crate::engine) memory: SessionMemory,
}

impl WorkerTls {
    pub(in crate::engine) fn new() -> WorkerTls {
        WorkerTls {
            memory: SessionMemory,
        }
    }
}
