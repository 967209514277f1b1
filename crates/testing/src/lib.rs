//! What the tests of several crates share. It is not part of the product.
//!
//! Modules, lowest first: `temp_dir` (folders that remove themselves), `child` (tests that run
//! themselves in a process of their own), `matrix` (which drivers and seeds a test uses), `seccomp`
//! (refused system calls), `panics` (panics on purpose), `log` (what a test logs), `reply`
//! (responses of HTTP servers), `body` (content of objects), `example` (the examples as programs).

mod body;
pub mod child;
pub mod example;
pub mod log;
pub mod matrix;
pub mod panics;
mod reply;
pub mod seccomp;
mod temp_dir;

pub use body::body;
pub use reply::Reply;
pub use temp_dir::TempDir;
