//! The command line of the server, and the commands besides it.
//!
//! Modules, lowest first: `cli` · `parse`, `terminal` · `check`, `health`, `scrub`, `sign`,
//! `sweep`, `user` · `pages` (the manual of all).

pub(crate) mod check;
pub(crate) mod cli;
pub(crate) mod health;
pub(crate) mod pages;
mod parse;
pub(crate) mod scrub;
pub(crate) mod sign;
pub(crate) mod sweep;
mod terminal;
pub(crate) mod user;
