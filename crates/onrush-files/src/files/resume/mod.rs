//! The protocols of uploads that continue: the draft of the IETF, parts in any order, and tus.
//!
//! Modules, lowest first: `upload_protocols` · `upload_target` · `upload_parts` · `tus_concat` ·
//! `tus` · `resumable` (PUT and PATCH of a part).

pub(super) mod resumable;
pub(super) mod tus;
pub(super) mod tus_concat;
pub(super) mod upload_parts;
pub(super) mod upload_protocols;
pub(super) mod upload_target;
