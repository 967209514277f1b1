//! What HTTP defines: errors, media types, names of codings and digests.
//!
//! Modules, lowest first: `negotiate` · `http_error` (error responses) · `open_error` ·
//! `media_type` · `types` (of names) · `digest` · `codings` (of files beside objects).

pub(super) mod codings;
pub(super) mod digest;
pub(crate) mod http_error;
pub(super) mod media_type;
pub(crate) mod negotiate;
pub(super) mod open_error;
pub(super) mod types;
