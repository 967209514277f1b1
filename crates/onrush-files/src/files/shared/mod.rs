//! What requests share: rights of clients, budgets, the log of storage errors, and names that
//! clients write.
//!
//! Modules, lowest first: `client_rights` · `storage_log` · `budget` · `buffers` · `stored_fields`
//! (fields of a PUT) · `open_files` (shares of clients) · `client_shares` (all budgets of clients)
//! · `objects` (what every method needs) · `content_address` (names that are digests) · `pieces`
//! (bodies from a remote store) · `state_rules` (states of Terraform) · `destination` (where a
//! client may write) · `multistatus` (XML about several resources) · `stand_in` · `run_to_end`
//! (changes without their clients) · `permitted` (what a listing offers).

pub(super) mod budget;
pub(super) mod buffers;
pub(super) mod client_rights;
pub(super) mod client_shares;
pub(super) mod content_address;
pub(super) mod destination;
pub(super) mod multistatus;
pub(super) mod objects;
pub(super) mod open_files;
pub(super) mod permitted;
pub(super) mod pieces;
pub(super) mod run_to_end;
pub(crate) mod stand_in;
pub(super) mod state_rules;
pub(super) mod storage_log;
pub(super) mod stored_fields;
