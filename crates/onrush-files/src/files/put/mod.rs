//! Changes by PUT, DELETE, COPY, MOVE and forms.
//!
//! Modules, lowest first: `state_locks`, `writes` · `copying` · `terraform` (locks of states) ·
//! `tree` (changes of a folder with everything in it) · `write` (PUT, DELETE) · `relocate` (COPY,
//! MOVE) · `form` (POST of files).

pub(super) mod copying;
pub(super) mod form;
pub(super) mod relocate;
pub(super) mod state_locks;
pub(super) mod terraform;
pub(super) mod tree;
pub(super) mod write;
pub(super) mod writes;
