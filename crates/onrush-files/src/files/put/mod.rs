//! Changes by PUT, DELETE, COPY, MOVE and forms.
//!
//! Modules, lowest first: `methods` · `terraform` (locks of states) · `tree` (changes of a folder
//! with everything in it) · `multistatus` · `write` (PUT, DELETE) · `relocate` (COPY, MOVE) ·
//! `form` (POST of files).

pub(super) mod form;
pub(super) mod methods;
pub(super) mod multistatus;
pub(super) mod relocate;
pub(super) mod terraform;
pub(super) mod tree;
pub(super) mod write;
