//! A folder over HTTP, as a handler for one's own server; the binary `onrush` is built on it.
//!
//! ```no_run
//! use onrush::{Router, Server};
//! use onrush_server::{Files, FilesOptions};
//! use std::path::Path;
//!
//! fn main() -> std::io::Result<()> {
//!     let files = Files::open(Path::new("/srv/pictures"), FilesOptions::default())?;
//!     Server::bind("127.0.0.1:8080").serve(Router::new().any("/pictures/{*key}", files))
//! }
//! ```
//!
//! This crate must not know drivers or descriptors, and nothing in [`files`] knows the command
//! line.

#![forbid(unsafe_code)]

pub mod files;

pub use files::{Allow, Files, FilesOptions};
pub use onrush_store::Durability;
