//! A handler that serves a folder over HTTP. The binary `onrush` uses it; other servers can use it
//! as well.
//!
//! ```no_run
//! use onrush::{Router, Server};
//! use onrush_files::{Files, FilesOptions, Guard, Hosts, ListenAddress};
//! use std::path::Path;
//!
//! fn main() -> std::io::Result<()> {
//!     let files = Files::open(Path::new("/srv/pictures"), FilesOptions::default())?;
//!     let router = Router::new().any("/pictures/{*key}", files);
//!     let address = ListenAddress::resolve("127.0.0.1:8080");
//!     let hosts = Hosts::for_listener(&address, &[]);
//!     Server::bind(address.to_bind()).serve(Guard::new(hosts, router))
//! }
//! ```
//!
//! [`Files`] does not check the origin of a request. A [`Guard`] in front of it refuses requests
//! that web pages of other sites cause a browser to send.
//!
//! [`Https`] redirects requests without TLS and sends `Strict-Transport-Security`.
//!
//! [`Access`] decides who may do what: users with passwords, tokens, certificates and signed URLs.
//!
//! [`add_dashboard`] shows operators what a server does.
//!
//! [`Forwarding`] learns from trusted reverse proxies who their clients are.
//!
//! Layers inside this crate, lowest first: `hex` · `client_address` · [`rights`] · `shares` ·
//! [`files`] · [`rules`] · `dashboard` · [`guard`] · [`access`] · [`https`] · [`forwarding`].
//!
//! The library does not depend on drivers, and [`files`] does not depend on the command line.

#![forbid(unsafe_code)]

pub mod access;
mod client_address;
mod dashboard;
pub mod files;
pub mod forwarding;
pub mod guard;
mod hex;
pub mod https;
pub mod rights;
pub mod rules;
mod shares;

pub use access::{Access, AccessControl, Users};
pub use dashboard::{add_dashboard, admin_not_found};
pub use files::{
    Allow, Files, FilesOptions, PAGE_PATHS, Types, UPLOAD_RECORDS, Upkeep, UploadLimits,
    recorded_uploads,
};
pub use forwarding::Forwarding;
pub use guard::{BodyLimit, Cors, Guard, Hosts, ListenAddress};
pub use https::{HttpChallenges, Https, Redirect, https_port};
pub use onrush_store::Durability;
pub use rights::{Identity, PathRights, Rights};
pub use rules::{RuleFiles, RuleSource, Rules, SiteRules};
