//! A folder over HTTP, as a handler for one's own server; the binary `onrush` is built on it.
//!
//! ```no_run
//! use onrush::{Router, Server};
//! use onrush_server::{Files, FilesOptions, Guard, Hosts};
//! use std::path::Path;
//!
//! fn main() -> std::io::Result<()> {
//!     let files = Files::open(Path::new("/srv/pictures"), FilesOptions::default())?;
//!     let router = Router::new().any("/pictures/{*key}", files);
//!     let hosts = Hosts::for_listener("127.0.0.1:8080", &[]);
//!     Server::bind("127.0.0.1:8080").serve(Guard::new(hosts, router))
//! }
//! ```
//!
//! [`Files`] itself does not look at who asks; a [`Guard`] before it refuses what the pages of
//! other sites make a browser send.
//!
//! Floors inside this crate, lowest first: [`files`] · [`guard`].
//!
//! This crate must not know drivers or descriptors, and nothing in [`files`] knows the command
//! line.

#![forbid(unsafe_code)]

pub mod files;
pub mod guard;

pub use files::{Allow, Files, FilesOptions, Types};
pub use guard::{Guard, Hosts};
pub use onrush_store::Durability;
