//! What HTTP defines: errors, media types, codings and digests.
//!
//! Modules, lowest first: `negotiate` · `http_error` (error responses) · `open_error` ·
//! `media_type` · `types` (of names) · `digest` · `codings` · `encoder`.

pub(super) mod codings;
pub(super) mod digest;
pub(super) mod encoder;
pub(crate) mod http_error;
pub(super) mod media_type;
pub(crate) mod negotiate;
pub(super) mod open_error;
pub(super) mod types;
