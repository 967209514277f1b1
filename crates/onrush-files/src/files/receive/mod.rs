//! Bodies that become objects, with their limits.

pub(super) mod upload;
