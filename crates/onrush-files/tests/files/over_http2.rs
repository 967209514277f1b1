//! Tests of `main.rs` again, with clients that speak HTTP/2: what the object server does is the
//! same. `common::over_http2` is true in this binary. Tests write requests of HTTP/1.1 and read
//! such responses; `testing::gateway` is between them and the server.
//!
//! `NOT_HERE` lists the files that are not among them, with the reasons. Single tests about what
//! differs return at once, with the reason.

#![allow(unreachable_pub)] // shared modules are written as those of a library

#[allow(dead_code, reason = "`main.rs` uses all of it")]
mod common;

mod archive;
mod busy_pool;
mod cache;
mod compress;
mod declared_lengths;
mod deep;
mod file_shares;
mod form;
mod guard;
mod held_changes;
mod large_folders;
mod limits;
mod list;
mod metadata;
mod parts;
mod paths;
mod read;
mod relocate;
mod remote;
mod replaced;
mod resumable;
mod shown;
mod siblings;
mod site;
mod storage;
mod store;
mod terraform;
mod tus;
mod tus_concat;
mod upload;
mod upload_index;
mod wanted_digest;
mod watch;
mod webdav;
mod webdav_desktops;
mod webdav_folders;
mod webdav_locks;
mod write;

/// The other modules of `main.rs`, with the reasons.
const NOT_HERE: [(&str, &[&str]); 1] = [("it is about the drivers of tests", &["drivers"])];

#[test]
fn each_module_is_here_or_has_a_reason() {
    let (main, here) = (include_str!("main.rs"), include_str!("over_http2.rs"));
    testing::assert_all_modules(main, here, &NOT_HERE);
}
