//! What the tests of several crates share, and the benchmarks. It is not part of the product.
//!
//! Modules, lowest first: `temp_dir` (folders that remove themselves), `child` (tests that run
//! themselves in a process of their own), `watchdog` (tests that hang), `skip` (tests that cannot
//! run here), `programs` (those of others), `drivers` (those that work here), `matrix` (which
//! drivers and seeds a test uses), `seccomp` (refused system calls), `panics` (panics on purpose),
//! `log` (what a test logs), `reserved_port` (ports for programs), `connect_from` (clients with
//! other addresses), `read_some` (what a client receives), `reply` (responses of HTTP servers),
//! `body` (content of objects), `example` (the examples as programs), `http2` (a client), `gateway`
//! (requests of HTTP/1.1 through it), `modules` (binaries with the tests of another one).

mod body;
pub mod child;
mod connect_from;
pub mod drivers;
pub mod example;
pub mod gateway;
pub mod http2;
pub mod log;
pub mod matrix;
mod modules;
pub mod panics;
pub mod programs;
mod read_some;
mod reply;
mod reserved_port;
pub mod seccomp;
mod skip;
mod temp_dir;
mod watchdog;

pub use body::body;
pub use connect_from::connect_from;
pub use modules::assert_all_modules;
pub use read_some::read_some;
pub use reply::Reply;
pub use reserved_port::ReservedPort;
pub use skip::or_skip;
pub use temp_dir::TempDir;
pub use watchdog::{Watchdog, watchdog};
