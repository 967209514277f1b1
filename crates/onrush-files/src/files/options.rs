//! The options of [`Files`](crate::Files)(super::Files).

use crate::files::http::types::Types;
use crate::files::upload_limits::UploadLimits;
use onrush_rt::descriptors::Descriptors;
use onrush_store::{Durability, ShownNames};

/// The changes that clients may make. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// `PUT` creates and replaces objects, and creates their folders.
    pub put: bool,
    /// `DELETE` deletes objects and empty folders.
    pub delete: bool,
    /// `DELETE` deletes folders with everything in them, and COPY and MOVE replace them. Without
    /// effect unless `delete` is set.
    pub delete_folders: bool,
}

/// The options of [`Files`](crate::Files). By default the folder is read-only and names that begin
/// with a dot are hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    /// Which changes clients may make.
    pub allow: Allow,
    /// Serves, lists and writes names that begin with a dot like other names.
    pub hidden: bool,
    /// Those of them that are served without [`FilesOptions::hidden`].
    pub show: ShownNames,
    /// Serves the folder as a web site. A folder with an `index.html` serves that object instead of
    /// a listing, and pages run with the rights of the server's origin. Otherwise, objects with
    /// scripts that a browser would run (HTML, SVG, other XML, scripts) are sent with
    /// `Content-Security-Policy: sandbox`. So a client with the right to upload cannot act with the
    /// rights of readers.
    pub site: bool,
    /// Serves WebDAV (RFC 4918, classes 1 and 2): `PROPFIND`, `PROPPATCH`, `MKCOL`, `LOCK` and
    /// `UNLOCK`, and locks and the field `If` for all changes. Locks are in memory.
    pub webdav: bool,
    /// The number of entries of a folder and those beneath it up to which `PROPFIND` may have
    /// `Depth: infinity`; for more it gets 403. 0: for all.
    pub propfind_entries_max: usize,
    /// Serves a site of one page: a client that navigates to a path without an object gets the
    /// `index.html` of the top folder. Needs `site`.
    pub spa: bool,
    /// Serves `name.zst`, `name.br` or `name.gz` as the content of `name` to clients that accept
    /// the coding. To write such an object, a client needs the right to replace `name`.
    pub precompressed: bool,
    /// Compresses text while it is sent, for clients that accept it.
    pub compress: bool,
    /// Reads, counts and discards the bodies of `PUT` instead of storing them. `PUT` is then
    /// allowed regardless of `allow`. Invalid names, conflicts and failed preconditions are refused
    /// as in a `PUT` that stores.
    pub sink: bool,
    /// Serves objects whose names end with `.tfstate` as states of Terraform and OpenTofu, with
    /// `LOCK`, `UNLOCK`, and updates that need the `ID` of the lock. Needs [`Allow::put`].
    pub terraform_state: bool,
    /// Serves a build cache. A `PUT` to a folder named `cas` is accepted only if the name is the
    /// SHA-256 of the content, in hexadecimal digits in lower case; otherwise it gets 400. Folders
    /// `v1/cache` and `v8/artifacts` are served as nx and Turborepo expect.
    pub content_addressed: bool,
    /// Reserves the paths under `/-/` for [`onrush::Admin`]: no object is served or written at or
    /// under the name `-` in the top folder, in any spelling.
    pub reserve_admin_paths: bool,
    /// Media types by extension, which take precedence over the built-in ones. They apply to
    /// objects whose `PUT` had no `Content-Type`.
    pub types: Types,
    /// The failures that an acknowledged change survives.
    pub durability: Durability,
    /// The free space of the file system below which no object is written, in bytes.
    /// [`Files::new`](crate::Files::new) ignores it, because a store has its own
    /// ([`onrush_store::FolderOptions::min_free_bytes`]).
    pub min_free_bytes: u64,
    /// Whether new objects get a checksum ([`onrush_store::FolderOptions::checksums`]).
    pub checksums: bool,
    /// The maximum number of path segments of a `PUT`, folders and object; more get 400. It limits
    /// the folders that one `PUT` creates and syncs. Deeper objects that other programs created
    /// can be read, listed and deleted.
    pub depth_max: usize,
    /// The maximum size of small objects in memory, in bytes, divided equally among the cores; 0
    /// keeps none. The same amount again, up to 16 MiB, may be in use by responses to slow clients.
    /// Beyond it, objects are sent from their files.
    pub cache_bytes_max: usize,
    /// The maximum number of larger files that are kept open, for about a tenth of a second each,
    /// divided equally among the cores; 0 keeps none. Each uses a descriptor. If the file is
    /// deleted, its space is freed only when it is closed.
    pub cache_files_max: usize,
    /// The time that a cached object is served without access to the disk, in milliseconds. Changes
    /// by other programs become visible within that time. For an open file it is at most a tenth of
    /// a second.
    pub cache_max_age_ms: u64,
    /// The maximum size of all upload buffers, in bytes. Long uploads share one half. Every
    /// other upload gets buffers of its own from the other half, or one small buffer if that half
    /// is used up.
    pub upload_bytes_max: usize,
    /// The limits of uploads that can be continued, and of objects.
    pub upload_limits: UploadLimits,
    /// The maximum number of clients that watch folders at a time; more get 503.
    pub watchers_max: usize,
    /// The maximum number of threads for file operations that may block.
    pub blocking_threads: usize,
    /// The budget of open files. If the server uses the same budget, it includes the connections.
    /// Uploads, and downloads of objects that are not in memory, get 503 if it is used up. The
    /// default has no limit. [`Files::new`](crate::Files::new) ignores it, because a store has its
    /// own ([`onrush_store::FolderOptions::descriptors`]).
    pub descriptors: Descriptors,
}

impl Default for FilesOptions {
    fn default() -> FilesOptions {
        FilesOptions {
            allow: Allow::default(),
            hidden: false,
            show: ShownNames::default(),
            reserve_admin_paths: false,
            site: false,
            webdav: false,
            propfind_entries_max: 0,
            spa: false,
            precompressed: false,
            compress: false,
            sink: false,
            terraform_state: false,
            content_addressed: false,
            types: Types::default(),
            durability: Durability::Full,
            min_free_bytes: 0,
            checksums: true,
            depth_max: 64,
            cache_bytes_max: 64 << 20,
            cache_files_max: 256,
            cache_max_age_ms: 1_000,
            upload_bytes_max: 32 << 20,
            upload_limits: UploadLimits::default(),
            watchers_max: 1024,
            blocking_threads: 16,
            descriptors: Descriptors::default(),
        }
    }
}

impl FilesOptions {
    /// Whether the response to a GET depends on the codings that the client accepts.
    #[inline]
    pub(in crate::files) fn varies_by_coding(&self) -> bool {
        self.precompressed || self.compress
    }
}
