//! The tests of this crate, as one binary: it is linked once.

// What they share.
mod common;
mod continued;

// Conditions that the service does not evaluate, or whose outcome is not known.
mod conditions;
// The promises of the trait `Store`.
mod conformance;
// A service that fails.
mod failures;
// Objects, rights and times that other programs have made.
mod foreign;
// Histories of several servers are linearizable.
mod histories;
// Uploads of several parts.
mod multipart;
// Single operations and their requests.
mod objects;
// Several servers change the same objects.
mod races;
// What is sent: bytes, numbers of requests, retries.
mod requests;
// Uploads that continue.
mod resumable;
// Their commits, which fail, or whose response is lost.
mod resumable_commits;
