//! A [`Store`](onrush_store::Store) on a service with the S3 interface: Ceph, AWS, Garage, MinIO.
//!
//! The service stores the objects and replicates them. This crate keeps nothing on the local disk,
//! so any number of servers can be in front of one bucket. An object is stored as it is, under its
//! key: other S3 clients can read and write it.
//!
//! Requests run on a small tokio runtime of this crate; the workers of the server wait for them
//! without blocking. They are made by `object_store`, which signs them, finds the credentials, and
//! repeats a request after a failure if that is safe.
//!
//! | operation | requests |
//! | --- | --- |
//! | open | one GET of what the caller wants, or HEAD if it wants no bytes; a further GET for other bytes, if the object is still the same (`If-Match`); a listing of one key if there is no object |
//! | meta | HEAD; a listing of one key if there is no object |
//! | put up to 1 MiB, or of unknown length up to 8 MiB | PUT, with `If-Match` or `If-None-Match: *` if there is a condition; HEAD if there is none, or if the service has to compare versions |
//! | put of known length, up to 5 GiB | the same; the body is passed on as it arrives |
//! | other puts | multipart upload, without a condition only; aborted if the client disconnects; HEAD if it is not known whether it was completed, or with which tag |
//! | upload that continues | a multipart upload once its bytes fill a part; each time that they are kept, one PUT of the list of parts with the rest; GET of it to continue; under a condition, one PUT of the whole object at the end |
//! | delete | HEAD and DELETE; a listing of one key if there is no object |
//! | list | pages of `ListObjectsV2` with the delimiter `/`, at most 20; one of them again if it has a key of another client that `object_store` refuses |
//!
//! What cannot be done atomically fails with
//! [`StoreError::Unsupported`](onrush_store::StoreError::Unsupported). Before the first put with a
//! condition, two or three requests tell whether the service evaluates conditions.
//!
//! While the service cannot be reached, requests fail at once; see [`RemoteStore::is_reachable`].
//!
//! Layers, lowest first: `features` · `error` · `metrics` · `breaker` · `record` · `fields` ·
//! `observer` · `location` · `part_memory` · `service` · `tasks` · `signed` · `credentials` ·
//! `conditions` · `properties` · `reader` · `transfer` · `multipart` · `part_buffer` · `upload` ·
//! `kept` · `resumable` · `listing` · `kept_sweep` · `store` · `unfinished`.

mod breaker;
mod conditions;
mod credentials;
mod error;
mod features;
mod fields;
mod kept;
mod kept_sweep;
mod listing;
mod location;
mod metrics;
mod multipart;
mod observer;
mod part_buffer;
mod part_memory;
mod properties;
mod reader;
mod record;
mod resumable;
mod service;
mod signed;
mod store;
mod tasks;
mod transfer;
mod unfinished;
mod upload;

pub use location::{InvalidLocation, Location};
pub use metrics::{DURATION_BOUNDS, RemoteMetrics, RequestCounts};
pub use service::{Check, OpenError, Options};
pub use store::RemoteStore;
pub use unfinished::{KeptObject, UnfinishedUpload, UnfinishedUploads};
