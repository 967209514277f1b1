//! The tests of this crate, as one binary: it is linked once.

// What they share.
#[macro_use]
mod common;
// What the file system of a folder can do.
mod abilities;
mod build_cache_common;
mod edge_common;
mod mount_namespace;

// A build cache: its limit, the order of eviction, restarts, torn files, power cuts.
mod build_cache;
// What it leaves for the next process.
mod build_cache_list;
// Every flipped bit is found.
mod checksums;
// The promises of the trait `Store`.
mod conformance;
mod current;
// Puts that create many folders on a slow disk.
mod deep;
// The budget of descriptors.
mod descriptors;
// An edge in front of another store.
mod edge;
// Its disk: limit, restarts, torn files, power cuts.
mod edge_disk;
// Failures of its disk.
mod edge_failures;
// A store behind it that does not respond.
mod edge_outage;
// A power cut or an error at every operation of a put, and random histories.
mod faults;
// Folders that are created without an object.
mod folders;
// Puts that share their syncs.
// A power cut or an error at every operation of an upload that continues.
mod kept;
// Commits of such uploads that fail.
mod kept_failures;
// Such uploads that are joined to an object.
mod kept_joined;
// Such uploads whose parts arrive in any order.
mod kept_parts;
// Which bytes are valid keys.
mod keys;
// `kill -9` at random moments.
mod kill;
// Links and special files at the name of an object.
mod links;
// Many listings at once.
mod listings;
// `Folder` as a store.
mod objects;
// Other file systems beneath the folder.
mod mount_points;
mod mounts;
// Those that become read-only, and which thread opens their files.
mod mounted;
// Moves that a dead process has not ended.
mod moves;
// Listings in pages.
mod pages;
// Conditions hold between processes.
mod processes;
// Properties of clients.
mod properties;
// What a rename replaces, after errors and power cuts.
mod replaced;
// Quotas: all that counts, random operations, restarts.
mod quota;
// Quotas while objects move and change.
mod quota_moves;
// Many threads use one folder.
mod races;
// Large objects are freed on the pool.
mod release;
// Copies and renames.
mod relocate;
// Owner, group, mode and access control lists of objects.
mod rights;
// Options that change while a folder is in use.
mod settings;
// What dead processes leave of uploads that continue.
mod leftovers;
// Files of uploads before their commit.
mod staging;
// Watched folders.
mod watch;
