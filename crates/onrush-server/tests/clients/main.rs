//! External programs as clients of the real binary. One binary, because linking one takes longer
//! than most of its tests.

#![allow(unreachable_pub)] // shared modules are written as those of a library

mod browser; // shared: scripts that drive Chromium
#[expect(dead_code)] // `cli` uses all of it
#[path = "../program/mod.rs"]
mod program; // shared: the running program

mod archive; // tar, unzip, bsdtar, Python
mod bazel; // Bazel and the build cache
mod ccache; // ccache and the build cache
mod chaos; // reads during writes
mod http; // curl, wget, wrk
mod http2; // clients of HTTP/2 while the server restarts
mod kill; // `kill -9` during uploads
mod large_folder; // a million files by curl, tar, rclone
mod live; // what Chromium shows live
mod metadata; // curl: codings, types, digests
mod mirror; // 20,000 files by wget and curl
mod page; // the page in Chromium
mod paths; // apt, rclone, curl: dot segments
mod prometheus; // Prometheus
mod recipes; // the pages of `docs/recipes`
mod sccache; // sccache and the build cache
mod tls; // Go, Node, Java, Chromium over TLS
mod tus; // tuspy, tus-js-client
mod uploads; // 32 curls at once
mod webdav; // litmus, cadaver, rclone
