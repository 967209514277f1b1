//! The real binary: command line, signals, sockets, users. One binary, because linking one takes
//! longer than most of its tests.

#![allow(unreachable_pub)] // shared modules are written as those of a library

mod acme_server; // shared: an ACME authority that fails on demand
mod keep_alive; // shared: a client with one connection
#[path = "../program/mod.rs"]
mod program; // shared: the running program
mod service_manager; // shared: a service manager

mod access; // rights of each user
mod access_log; // the access log
mod acme; // certificates from pebble
mod acme_failures; // an ACME authority that fails
mod admin; // metrics and health
mod cache; // `--cache`
mod command_line; // help, sources of options, errors
mod descriptors; // attacks on descriptors
mod edge; // `--edge`
mod examples; // `examples/`
mod failed_logins; // failed and many logins
mod former_users; // users who are removed during a request
mod health; // `onrush health`
mod hosts; // names of the host, the sandbox
mod limits; // no descriptors, no receive memory
mod logins; // ways to log in
mod names; // a file system that does not distinguish case
mod options; // each option and each address
mod origins; // CORS
mod packaging; // files of `packaging/`
mod page; // what the page offers
mod pages; // manual pages and completions
mod parts; // parts and `kill -9`
mod proxies; // HAProxy and other proxies
mod reload; // SIGHUP: what applies
mod reload_refused; // SIGHUP: what does not apply
mod reload_stores; // SIGHUP: caches, checksums
mod relocate; // rights of COPY and MOVE
mod remote; // a bucket
mod remote_uploads; // unfinished uploads to a bucket
mod restart; // SIGUSR2
mod restart_quota; // SIGUSR2 with quotas
mod restart_twice; // SIGUSR2 during a drain
mod scrub; // `onrush scrub`
mod service; // notifications, inherited sockets
mod serving; // driver, log, end by signals
mod signals; // signals during requests
mod site; // a web site
mod stored; // limits on what is stored
mod tls; // HTTPS
mod tls_files; // files of certificates
mod tus_concat; // joined uploads: rights, `kill -9`
mod upload_kills; // `kill -9` while many clients upload
mod uploads; // unfinished uploads, restarts
mod users; // `onrush user`, `onrush check`
mod watch; // watched folders
mod webdav; // rights of WebDAV
