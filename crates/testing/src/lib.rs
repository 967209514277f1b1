//! What the tests of several crates share. It is not part of the product.
//!
//! Modules, lowest first: `temp_dir` (folders that remove themselves), `child` (tests that run
//! themselves in a process of their own), `matrix` (which drivers and seeds a test uses), `seccomp`
//! (refused system calls), `body` (content of objects).

mod body;
pub mod child;
pub mod matrix;
pub mod seccomp;
mod temp_dir;

pub use body::body;
pub use temp_dir::TempDir;
