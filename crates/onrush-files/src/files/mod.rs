//! Objects and folders over HTTP: the handler [`Files`].
//!
//! Submodules, lowest first: `http` (what HTTP defines) · `upload_limits`, `options` · `path`
//! (paths and keys) · `shared` (what requests share) · `object` (an object that is ready to be
//! served) · `receive` (bodies that become objects) · `uploads` (those that continue later) ·
//! `locks` (of WebDAV) · `listing` · `archive` · `get` · `put` · `resume` (protocols of uploads
//! that continue) · `webdav` · `methods` (what happens to a request) · `collector` (metrics of
//! budgets) · `handler` · `upkeep`.
//!
//! Each of them has its own type with what it uses: `Objects` is what all need, `Listings`,
//! `Reads`, `Writes`, `UploadProtocols` and `WebDav` serve requests, and `Methods` decides between
//! them.
//!
//! Nothing here blocks a worker: operations that may wait for a disk use the futures of the store.
//! The modules do not depend on the command line, sockets or drivers.

mod archive;
mod collector;
mod get;
mod handler;
pub(crate) mod http;
mod listing;
mod locks;
mod methods;
mod object;
mod options;
pub(crate) mod path;
mod put;
mod receive;
mod resume;
pub(crate) mod shared;
mod upkeep;
mod upload_limits;
pub(crate) mod uploads;
mod webdav;

pub use handler::Files;
#[cfg(feature = "testing")]
pub use handler::received;
pub use http::types::Types;
pub(crate) use listing::html::policy as page_policy;
pub(crate) use listing::list::nonce;
pub use options::{Allow, FilesOptions};
pub use path::assets::PATHS as PAGE_PATHS;
pub(crate) use resume::tus::override_method;
pub use upkeep::Upkeep;
pub use upload_limits::UploadLimits;
pub use uploads::{UPLOAD_RECORDS, recorded_uploads};
