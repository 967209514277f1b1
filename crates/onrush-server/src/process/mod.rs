//! What the process is and has: how it fails, its memory and descriptors, what the service manager
//! hears of it, and files that are read again or that others must not read.
//!
//! The modules do not know of options.

pub(crate) mod descriptors;
pub(crate) mod failure;
pub(crate) mod key_files;
pub(crate) mod memory;
pub(crate) mod redaction;
pub(crate) mod reload;
pub(crate) mod service_manager;
