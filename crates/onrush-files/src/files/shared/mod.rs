//! What requests share: rights of clients, budgets, the log of storage errors, and names that
//! clients write.
//!
//! Modules, lowest first: `client_rights` · `storage_log` · `budget` · `buffers` · `stored_fields`
//! (fields of a PUT) · `content_address` (names that are digests) · `pieces` (bodies from a remote
//! store) · `destination` (where a client may write) · `stand_in` · `run_to_end` (changes without
//! their clients) · `open_files` (shares of clients) · `permitted` (what a listing offers).

pub(super) mod budget;
pub(super) mod buffers;
pub(super) mod client_rights;
pub(super) mod content_address;
pub(super) mod destination;
pub(super) mod open_files;
pub(super) mod permitted;
pub(super) mod pieces;
pub(super) mod run_to_end;
pub(crate) mod stand_in;
pub(super) mod storage_log;
pub(super) mod stored_fields;
