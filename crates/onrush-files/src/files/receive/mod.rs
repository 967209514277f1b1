//! Bodies that become objects, with their limits.
//!
//! Modules, lowest first: `upload_limits` · `upload`.

pub(super) mod upload;
pub(super) mod upload_limits;
