//! The application `files` on real drivers and in the simulator. One binary, because linking one
//! takes longer than most of its tests.

#![allow(unreachable_pub)] // shared modules are written as those of a library

mod common; // shared: a server with a folder, and a client

mod archive; // a folder as tar and zip
mod busy_pool; // compression while the pool for CPU work is full
mod cache; // small objects in memory
mod compress; // codings made on the fly
mod declared_lengths; // bodies that end elsewhere than announced
mod deep; // deep paths
mod drivers; // where io_uring is refused
mod file_shares; // descriptors for files, while they are short
mod form; // `POST` of forms
mod guard; // requests of other sites
mod held_changes; // changes whose client disconnects
mod large_folders; // more entries than a page
mod limits; // sizes, free space, quotas
mod list; // listings in both formats
mod metadata; // fields stored with an object, digests in a PUT
mod parts; // parts in any order
mod paths; // paths that try to leave the folder
mod read; // GET, HEAD, ranges, conditions
mod relocate; // COPY and MOVE
mod remote; // a bucket that misbehaves
mod replaced; // COPY and MOVE onto a folder that exists
mod resumable; // uploads of the IETF draft
mod shown; // some names that begin with a dot
mod siblings; // precompressed siblings
mod site; // index, 404 and redirects of a site
mod storage; // errors of the disk
mod store; // a store that is not a folder
mod terraform; // states of Terraform
mod tus; // tus 1.0.0
mod tus_concat; // joined uploads of tus
mod upload; // incomplete and simultaneous bodies
mod upload_index; // unfinished uploads of an earlier process
mod wanted_digest; // `Want-Repr-Digest`
mod watch; // `?watch`
mod webdav; // methods and properties of WebDAV
mod webdav_desktops; // the file managers of macOS and Windows
mod webdav_folders; // the space of folders, and everything beneath them
mod webdav_locks; // locks and `If` of WebDAV
mod write; // PUT and DELETE
