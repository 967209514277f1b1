//! The kernel's structures and calls that no crate wraps, without policy.

pub(crate) mod bufring;
