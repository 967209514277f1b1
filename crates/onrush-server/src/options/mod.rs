//! The list of all options. The macro `options!` generates from each entry the flag, the
//! environment variable, the key of the configuration file, the help text and the merge of the
//! three sources. `config` interprets the values.
//!
//! To add an option, add one entry to the list below, and its use. A value of the object server
//! names the field of [`FilesOptions`] that it is written to. The program reads one that has a
//! default by its method, as in `settings.options.backlog()`. What depends on several options or
//! has no default is a setting of `config`. The tests of `config` and the compiler report an option
//! without a use. One that needs a restart also has its reason in docs/service.md.

#[macro_use]
mod definition;

pub(crate) mod access_values;
pub(crate) mod acme_values;
pub(crate) mod quota_values;
pub(crate) mod tls_values;
pub(crate) mod toml_values;
pub(crate) mod units;
pub(crate) mod values;

pub(crate) use crate::options::definition::{Definition, Effect};

use crate::options::access_values::{AuthUser, Origin};
use crate::options::acme_values::{AcmeName, DirectoryUrl, Email};
use crate::options::quota_values::QuotaOf;
use crate::options::tls_values::{FilePath, Hsts, RedirectAt, SelfSigned};
use crate::options::toml_values::{Switch, bool_value, boolish, list, types};
use crate::options::units::{Count, Port, Rate, Size, SizeMax, SizeOrOff, Time};
use crate::options::values::{
    AccessLogFormat, AdminAt, Bind, Change, Driver, Durability, HostName, LogFormat, LogLevel,
    PlacementName, ShowName,
};
use clap::{Args, ValueHint};
use onrush::PeerNetwork;
use onrush_files::{FilesOptions, Types};
use onrush_store::Key;
use serde::Deserialize;
use std::any::Any;
use std::path::{Path, PathBuf};

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// It contains a password or the hash of one.
    pub(crate) has_password: bool,
}

/// The paths in the value of an option.
fn paths(value: &dyn Any) -> impl Iterator<Item = &Path> {
    let folder = value
        .downcast_ref::<Option<PathBuf>>()
        .into_iter()
        .flatten();
    let one = value
        .downcast_ref::<Option<FilePath>>()
        .into_iter()
        .flatten();
    let list = value.downcast_ref::<Option<Vec<FilePath>>>();
    let list = list.into_iter().flatten().flatten();
    (one.chain(list).map(|file| &file.0).chain(folder)).map(PathBuf::as_path)
}

options! {
    "What to serve" {
        /// The folder to serve, or a bucket: s3://BUCKET/PREFIX [default: .]
        ///
        /// A bucket of Ceph, S3 or a compatible service. The variables AWS_ENDPOINT_URL,
        /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION say where it is and how to
        /// access it; see docs/scale.md.
        #[arg(value_hint = ValueHint::DirPath)]
        #[serde(alias = "store")]
        positional dir: PathBuf, Restart, "'/srv'";

        /// Keep copies of objects in this folder: a cache in front of a bucket or a slow folder
        ///
        /// The folder is created, or is empty, or is such a cache. It belongs to one process.
        /// Copies are served from the local disk; docs/scale.md says how current they are.
        #[arg(value_hint = ValueHint::DirPath)]
        value edge: FilePath = "DIR", Restart, "'/srv/cache'";

        /// The maximum disk space of the cache of --edge; at least 64MiB [default: 10GiB]
        value edge_size: Size = "SIZE" or Size::kib(10 << 20), OfEdge,
            "'1GiB'" with "edge = 'cache'";

        /// Serve a copy for so long without asking the store whether it is current [default: 10s]
        ///
        /// Changes through this server are visible at once, others within this time.
        value edge_fresh: Time = "TIME" or Time::seconds(10), OfEdge, "'7s'" with "edge = 'cache'";

        /// Serve a copy for so long while the store does not respond [default: 24h]
        value edge_stale: Time = "TIME" or Time::seconds(24 * 3600), OfEdge,
            "'7s'" with "edge = 'cache'";

        /// Make the folder a build cache of this size: for ccache, Bazel, Gradle, nx and others
        ///
        /// Such as 100G; at least 64MiB. The folder is created, or is empty, or is such a cache. It
        /// belongs to one process. When it is full, the objects that were not used for the longest
        /// time are removed. PUT is allowed without --allow, and names that begin with a dot are
        /// served. See docs/build-cache.md.
        value cache: Size = "SIZE", OfCache, "'1GiB'";

        /// Allow clients to make changes: put, delete, delete-folders, or none [default: none]
        ///
        /// A list, such as put,delete. With delete-folders, folders are deleted with everything in
        /// them; with delete, only empty ones. If any is allowed and the folder does not exist, it
        /// is created, with the folders above it.
        list allow: Change = "LIST", AtOnce, "'put,delete'";

        /// Serve names that begin with a dot
        ///
        /// By default they are hidden: reading one returns 404, writing one 403.
        switch hidden, AtOnce, "true";

        /// Serve these of the names that begin with a dot, as .z* for Zarr; may be repeated
        ///
        /// A list of names, in which * stands for any characters. All others stay hidden, and
        /// .onrush is always the store's.
        list show: ShowName = "NAME", AtOnce, "['.z*', '.config']";

        /// Serve a web site: index.html instead of listings, pages without a sandbox
        ///
        /// Without this option, HTML, SVG, other XML and scripts are sent with the header
        /// Content-Security-Policy: sandbox. It prevents an uploaded page from sending requests
        /// with the rights of its reader.
        switch site => files.site, AtOnce, "true";

        /// Serve WebDAV as well, so that the folder can be mounted; see docs/webdav.md
        ///
        /// Clients may make the changes that --allow permits; put,delete-folders permits all. With
        /// users and without --allow, delete-folders is on. Locks are in memory, so use one process
        /// for a folder.
        switch webdav => files.webdav, AtOnce, "true";

        /// Permit PROPFIND with Depth: infinity for folders with up to N entries [default: 0]
        ///
        /// Those of all folders beneath count; more get 403. Programs on the library object_store
        /// of Rust need it. Without --webdav it has no effect.
        value webdav_infinity: Count<0, 1_000_000> = "N" => files.propfind_entries_max, AtOnce, "7";

        /// Serve a site of one page: paths that name nothing show the index.html of the top folder
        ///
        /// Only to browsers that navigate to them. It needs --site.
        switch spa => files.spa, AtOnce, "true" with "site = true";

        /// Redirects of a site: a file with lines FROM TO [STATUS]; see docs/site.md
        ///
        /// It needs --site. The file is read again on SIGHUP, and after a change.
        #[arg(value_hint = ValueHint::FilePath)]
        value redirects: FilePath = "FILE", AtOnce, "'/etc/redirects'" with "site = true";

        /// Header fields of a site by path: a file; see docs/site.md
        ///
        /// It needs --site. The file is read again on SIGHUP, and after a change.
        #[arg(value_hint = ValueHint::FilePath)]
        value headers: FilePath = "FILE", AtOnce, "'/etc/headers'" with "site = true";

        /// Serve NAME.zst, NAME.br or NAME.gz as NAME to clients that accept the coding
        ///
        /// If it is not older than NAME. See docs/compression.md.
        switch precompressed => files.precompressed, AtOnce, "true";

        /// Compress text while it is sent, for clients that accept zstd or gzip
        switch compress => files.compress, AtOnce, "true";

        /// Serve names that end with .tfstate as states of Terraform and OpenTofu, with locks
        ///
        /// For their backend http. Clients need --allow put. See docs/recipes/terraform.md.
        switch terraform_state => files.terraform_state, AtOnce, "true";

        /// Receive uploads, count their bytes and discard them; allows PUT without --allow
        ///
        /// PUT returns 204 and stores nothing, whatever --durability is.
        switch sink => files.sink, AtOnce, "true";

        /// Media types by extension
        table types: Types => files.types, AtOnce, "{ ts = 'text/x-typescript' }";

        /// What a completed PUT or DELETE survives: full or none [default: full]
        ///
        /// full: a power failure. none: only a crash of the server; nothing is synced to the disk.
        value durability: Durability = "LEVEL" => files.durability, Restart, "'none'";

        /// Keep a checksum of each object in a folder, which onrush scrub verifies [default: on]
        ///
        /// CRC-64/NVME, in an extended attribute. off: --checksums=off.
        switch checksums => files.checksums, AtOnce, "false";
    }

    "Where to listen" {
        /// The port; 0 picks a free one [default: 8080]
        ///
        /// It applies to each --bind without a port.
        #[arg(short)]
        value port: Port = "PORT" or Port(8080), Restart, "81";

        /// An address to listen on: HOST, HOST:PORT, or unix:PATH [default: 127.0.0.1]
        ///
        /// Repeat it, or separate addresses with commas, to listen on several. An IPv6 address with
        /// a port is written in brackets, as in [::1]:8080. 0.0.0.0 and :: mean all addresses of
        /// the machine. The file of a Unix socket has the permissions that the umask leaves. A file
        /// that a dead server has left is replaced, and the file is removed when the server exits.
        #[arg(short)]
        list bind: Bind = "ADDRESS", Restart, "['::1', 'unix:/run/s']";

        /// A host name that requests may name in the Host header; may be repeated
        ///
        /// On loopback addresses, requests are served only for localhost, for loopback addresses
        /// and for the names given here; others get 421. This stops web pages that let their own
        /// name resolve to this machine. On other addresses every host is served unless a name is
        /// given. Ports are ignored. It applies to --admin as well. Unix sockets serve every host.
        #[arg(value_hint = ValueHint::Hostname)]
        list host: HostName = "NAME", AtOnce, "'a.example'";

        /// A proxy or load balancer that says who its clients are: an address, network, or unix
        ///
        /// Such as 10.0.0.0/8 or ::1; unix means the programs that connect to a Unix socket. Repeat
        /// it, or separate values with commas. The fields X-Forwarded-For, X-Forwarded-Proto and
        /// Forwarded count only in requests of these peers; see docs/proxies.md.
        list trusted_proxy: PeerNetwork = "NETWORK", AtOnce, "['10.0.0.0/8', 'unix']";

        /// Connections begin with a header of the PROXY protocol (send-proxy, send-proxy-v2)
        ///
        /// Version 1 or 2, before TLS. Only a --trusted-proxy can connect then. It applies to all
        /// addresses but that of --admin.
        switch proxy_protocol or false, Restart, "true";

        /// Speak HTTP/2 besides HTTP/1.1 and HTTP/1.0: on or off [default: on]
        ///
        /// When off, HTTPS offers only HTTP/1.1 and HTTP/1.0 (ALPN), and a client that begins with
        /// HTTP/2 without TLS gets an error. It applies to all addresses.
        value http2: Switch = "SWITCH" or Switch::On, Restart, "'off'";

        /// Serve /-/metrics, /-/dashboard, /-/health and /-/ready: on a port, an address, or same
        ///
        /// With same they share the address of the objects; objects under /-/ are then not served.
        /// An address of their own is never encrypted, so keep it on a loopback address.
        value admin: AdminAt = "WHERE", Restart, "'same'";
    }

    "HTTPS" {
        /// Serve HTTPS with this certificate, in PEM; may be repeated
        ///
        /// The file has the certificate of the server, then those of the authorities without the
        /// root. All addresses of --bind serve HTTPS then, with HTTP/2 to clients that speak it. Of
        /// several certificates, a client gets the one that has the name it asks for, otherwise the
        /// first. The files are read again on SIGHUP, and within a minute after a change.
        #[arg(value_hint = ValueHint::FilePath)]
        list tls_cert: FilePath = "FILE", OfCertificates,
            "['a.pem', 'b.pem']" with "tls-key = ['a.key', 'b.key']";

        /// The private key of a --tls-cert, in PEM; in the same order
        #[arg(value_hint = ValueHint::FilePath)]
        list tls_key: FilePath = "FILE", OfCertificates,
            "'a.key,b.key'" with "tls-cert = ['a.pem', 'b.pem']";

        /// The OCSP response for a --tls-cert, in DER; in the same order, may be fewer
        #[arg(value_hint = ValueHint::FilePath)]
        list tls_ocsp: FilePath = "FILE", OfCertificates,
            "'a.der'" with "tls-cert = 'a.pem'\ntls-key = 'a.key'";

        /// Serve HTTPS with a certificate that the server makes itself
        ///
        /// It is made once and kept in DIR/.onrush/tls/. Its SHA-256 fingerprint is printed at
        /// start. Its names are localhost, the host name of this machine, the loopback addresses,
        /// and the names of --bind, --host and this option.
        optional tls_self_signed: SelfSigned = "NAME,…", OfCertificates, "['a.example']";

        /// Serve HTTPS with a certificate for these names from an ACME authority; may be repeated
        ///
        /// The certificate is ordered from Let's Encrypt or --acme-directory, kept in
        /// DIR/.onrush/acme/, and renewed after two thirds of its validity. Its use means that you
        /// agree to the terms of the authority. The authority must reach this server by each name
        /// at port 443, or at port 80 with --http-redirect. Until there is a certificate, clients
        /// get a temporary one that they do not trust.
        #[arg(value_hint = ValueHint::Hostname)]
        list acme: AcmeName = "NAME", Restart, "['a.example', 'b.example']";

        /// The e-mail address for messages of the ACME authority
        #[arg(value_hint = ValueHint::EmailAddress)]
        value acme_email: Email = "ADDRESS", Restart, "'admin@a.example'" with "acme = 'a.example'";

        /// The directory URL of the ACME authority [default: that of Let's Encrypt]
        #[arg(value_hint = ValueHint::Url)]
        value acme_directory: DirectoryUrl = "URL", Restart,
            "'https://a.example/dir'" with "acme = 'a.example'";

        /// Trust an ACME server whose certificate is of these authorities, in PEM
        ///
        /// By default the authorities of this machine (ca-certificates) are trusted.
        #[arg(value_hint = ValueHint::FilePath)]
        value acme_ca: FilePath = "FILE", Restart, "'ca.pem'" with "acme = 'a.example'";

        /// Require client certificates of the authorities in this PEM file; may be repeated
        #[arg(value_hint = ValueHint::FilePath)]
        list tls_client_ca: FilePath = "FILE", Restart, "'ca.pem'" with "tls-self-signed = true";

        /// Accept clients without a certificate as well, in spite of --tls-client-ca
        switch tls_client_optional, Restart,
            "true" with "tls-self-signed = true\ntls-client-ca = 'ca.pem'";

        /// An address that serves HTTP without TLS beside HTTPS: HOST:PORT or unix:PATH
        ///
        /// Repeat it, or separate addresses with commas, to listen on several.
        list bind_plain: Bind = "ADDRESS", Restart,
            "['127.0.0.1:83', 'unix:/run/p']" with "tls-self-signed = true";

        /// Redirect HTTP to HTTPS (308): on a port of each --bind, or an address
        ///
        /// Requests get 400 if their Host is one that --host or --bind exclude. The redirection is
        /// to the port that --https-port gives, otherwise to that of the --bind with the same
        /// address, otherwise of the first --bind. With --admin same, /-/health and /-/ready are
        /// served.
        value http_redirect: RedirectAt = "WHERE", Restart, "84" with "tls-self-signed = true";

        /// The port of HTTPS that clients use, for --http-redirect [default: that of --bind]
        ///
        /// Give it if another program maps the ports, such as a container or a load balancer.
        value https_port: Port = "PORT", OfTls,
            "8443" with "tls-self-signed = true\nhttp-redirect = 80";

        /// Tell browsers to use only HTTPS for so long, in seconds [without a value: 31536000]
        ///
        /// Responses over TLS have the header Strict-Transport-Security. A browser cannot be made
        /// to forget it except by --hsts=0 over HTTPS.
        optional hsts: Hsts = "TIME", OfTls, "7" with "tls-self-signed = true";
    }

    "Access" {
        /// A user with all rights, as NAME:PASSWORD; then no other client has rights
        ///
        /// Other programs on this machine can read the arguments of a command. The variable
        /// ONRUSH_AUTH is better, and --auth-file is the best. Instead of a password, the value may
        /// have its Argon2id hash. --allow, if given, limits what the user may change.
        value auth: AuthUser = "NAME:PASSWORD", AtOnce, "'ann:secret'";

        /// Users with passwords, tokens, certificates and rights; onrush user edits the file
        ///
        /// Clients that do not log in have no rights, but for those of the table [anonymous] of the
        /// file and of the two options below. If --allow is given, it limits what all may change.
        /// Only the owner may have access to the file. SIGHUP reads it again. See docs/access.md.
        #[arg(value_hint = ValueHint::FilePath)]
        value auth_file: FilePath = "FILE", AtOnce, "'users.toml'";

        /// Everyone may read and list; only users may make changes
        switch public_read, AtOnce, "true" with "auth = 'ann:secret'";

        /// Everyone may create objects, but not replace, read, list or delete any
        ///
        /// It allows PUT without --allow. Users have their rights besides.
        switch upload_only, AtOnce, "true";

        /// Let web pages of this origin send requests, as https://app.example; may be repeated
        ///
        /// Its scripts have the same rights as pages of this server. With * every page may read
        /// what anonymous clients may read; it may not make changes.
        list cors: Origin = "ORIGIN", AtOnce, "['https://a.example', 'http://b.example:81']";

        /// Let clients that have not logged in make changes from other machines
        ///
        /// Without it, the server does not start if there are no users, clients may make changes,
        /// and an address is neither a loopback address nor a Unix socket.
        switch insecure_writes or false, AtOnce, "true";
    }

    "Limits" {
        /// The maximum size of a request body; a larger one gets 413 [default: off, no limit]
        ///
        /// An object that is uploaded in several requests may not be larger, either.
        value body_max: SizeMax = "SIZE" or SizeMax::OFF, AtOnce, "'1GiB'";

        /// The maximum size of an object; a larger one gets 413 [default: off]
        value max_object_size: SizeMax = "SIZE" or SizeMax::OFF, AtOnce, "'1GiB'";

        /// Keep this much space of the disk free: uploads get 507 before it is used [default: 0]
        ///
        /// A size such as 5GiB. Unfinished uploads count. It needs a folder, not a bucket.
        value min_free: Size = "SIZE" => files.min_free_bytes, AtOnce, "'1GiB'";

        /// The maximum size of all objects beneath a folder, as /folder=5GiB; more gets 507
        ///
        /// Repeat it, or separate values with commas; / is the top folder. All quotas that contain
        /// an object hold. Each object, folder and unfinished upload counts at least 4 KiB. It
        /// needs a folder, not a bucket; see docs/limits.md.
        list quota: QuotaOf = "PREFIX=SIZE", AtOnce, "['/=1GiB', '/a=5']";

        /// Remove an unfinished upload so long after its last byte [default: 24h]
        value unfinished_age: Time = "TIME", AtOnce, "'7s'";

        /// The maximum number of unfinished uploads; a further one gets 503 [0: uploads cannot be
        /// continued; default: 10000]
        value unfinished_count: Count<0, 1_000_000> = "N" => files.upload_limits.count_max,
            AtOnce, "7";

        /// The maximum size of all unfinished uploads; a further one gets 507 [default: off]
        value unfinished_size: SizeMax = "SIZE" => files.upload_limits.bytes_max, AtOnce, "'1GiB'";

        /// The maximum number of path segments of a PUT; more get 400 [default: 64]
        ///
        /// Deeper objects that other programs have made can be read, listed and deleted.
        value depth_max: Count<1, { Key::SEGMENTS_MAX as u32 }> = "N" => files.depth_max,
            AtOnce, "3";

        /// The maximum number of open connections [default: from the limit on open files]
        ///
        /// When it is reached, a new connection replaces the one that has been idle for the longest
        /// time. When none is idle, it replaces one of the client with the most connections, if
        /// that client has at least two more; otherwise it gets 503.
        ///
        /// The default is B - B/8 - R, at least 1. B is the limit on open files (ulimit -Hn) less
        /// 16, 2 per file thread, 4 per worker and 2 more per worker for each address, and less a
        /// 32nd of the rest (4 to 64 per worker) for connections that get 503. R is B/16, but from
        /// 2 to 256. With a separate --admin address, B is up to 74 smaller. The log shows the
        /// number. Downloads may keep 3B/8 - R files open, uploads 2B/8 - R; beyond that they get
        /// 503.
        value connections_max: Count<1> = "N", AtOnce, "7";

        /// The time limit for a request head, or off [default: 15s]
        value header_timeout: Time = "TIME" or Time::seconds(15), AtOnce, "'7s'";

        /// The maximum pause within a request body, or off [default: 60s]
        value body_timeout: Time = "TIME" or Time::seconds(60), AtOnce, "'7s'";

        /// The time limit for a client that does not read the response, or off [default: 60s]
        value write_timeout: Time = "TIME" or Time::seconds(60), AtOnce, "'7s'";

        /// The minimum rate of uploads and downloads, in bytes per second, or off [default: 100]
        ///
        /// It is an average over 30 s of waiting for the client. An upload that is too slow gets
        /// 408; a connection that reads too slowly is reset.
        value min_rate: Rate = "RATE" or Rate { bytes_per_s: 100 }, AtOnce, "7";

        /// The maximum idle time of a connection between requests, or off [default: 75s]
        value idle_timeout: Time = "TIME" or Time::seconds(75), AtOnce, "'7s'";

        /// The time limit for a request with its response, or off [default: 24h]
        value total_timeout: Time = "TIME" or Time::seconds(24 * 3600), AtOnce, "'7s'";

        /// The time limit for requests in progress after SIGTERM or SIGINT, or off [default: 30s]
        value drain_timeout: Time = "TIME" or Time::seconds(30), AtOnce, "'7s'";
    }

    "Logging" {
        /// Log each request when it ends, whatever --log-level is [default: off]
        ///
        /// It is on by default when --access-log-format is given. docs/operations.md lists the
        /// fields. The events have the level info.
        value access_log: Switch = "SWITCH", AtOnce, "'on'";

        /// The format of the access log: text, json, or combined [default: as --log-format]
        ///
        /// combined is the format of Apache and nginx, with times in UTC. It shares stderr with the
        /// log; docs/operations.md shows how to separate them.
        value access_log_format: AccessLogFormat = "FORMAT", AtOnce, "'combined'";

        /// The format of the log, which goes to stderr [default: text]
        value log_format: LogFormat = "FORMAT" or LogFormat::Text, AtOnce, "'json'";

        /// The lowest severity that is logged, except by --access-log [default: info]
        value log_level: LogLevel = "LEVEL" or LogLevel::Info, AtOnce, "'debug'";
    }

    "Tuning" {
        /// The number of worker threads [default: one per core]
        ///
        /// The default is lower where the limit on open files is below 24 per core.
        value workers: Count<1, 1024> = "N", Restart, "7";

        /// The maximum number of threads for file operations [default: 16]
        value file_threads: Count<1, 1024> = "N" => files.blocking_threads, Restart, "7";

        /// Memory for small objects that are requested often, or off [default: 64MiB]
        ///
        /// The default is lower on small machines: at most a twentieth of the memory, or of the
        /// limit of a cgroup of the process.
        ///
        /// Changes that other programs make in the folder are noticed within a second, changes
        /// through this server at once, unless the file has another name (a link).
        value cache_size: SizeOrOff = "SIZE", AtOnce, "'7MiB'";

        /// Memory for received data that is not processed yet, or off [default: 256MiB]
        ///
        /// For all workers together. It includes responses that clients do not read. The default is
        /// lower on small machines: at most a fifth of the memory, or of the limit of a cgroup of
        /// the process. Each worker gets an equal share, but at least 1MiB, and at least twice its
        /// receive buffers. When memory runs short, the oldest incomplete request heads get 408,
        /// requests with a body get 503, and clients that do not read their responses are reset.
        value receive_memory: SizeMax = "SIZE", Restart, "'7MiB'";

        /// The kernel interface for network I/O [default: auto]
        ///
        /// auto uses io_uring if it works, otherwise epoll, and logs the choice. With io_uring the
        /// server does not start where io_uring is not available.
        value driver: Driver = "DRIVER" or Driver::Auto, Restart, "'epoll'";

        /// Which worker serves a new connection [default: least-loaded]
        ///
        /// single: always the first worker. reuseport: the kernel chooses (SO_REUSEPORT).
        /// round-robin: each in turn. least-loaded: the worker with the fewest connections.
        value placement: PlacementName = "PLACEMENT" or PlacementName::LeastLoaded,
            Restart, "'single'";

        /// Move connections from busy workers to idle ones [default: on]
        value rebalance: Switch = "SWITCH" or Switch::On, AtOnce, "'off'";

        /// Accept a connection when its first bytes arrive, or after one second [default: on]
        ///
        /// This halves the cost of connections for a single request (TCP_DEFER_ACCEPT). When off,
        /// connections are accepted at once.
        switch defer_accept or true, Restart, "false";

        /// The maximum number of connections that wait to be accepted [default: 4096]
        value backlog: Count<1, { 1 << 20 }> = "N" or Count(4096), Restart, "7";

        /// The number of receive buffers of a worker; a power of two; io_uring only [default: 256]
        value ring_buffers: Count = "N" or Count(256), Restart, "16";

        /// The size of a receive buffer; io_uring only [default: 4KiB]
        value ring_buffer_size: Size = "SIZE" or Size::kib(4), Restart, "2048";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_source_takes_precedence() {
        let first = Options {
            port: Some(Port(1)),
            ..Options::default()
        };
        let second = Options {
            port: Some(Port(2)),
            workers: Some(Count(3)),
            ..Options::default()
        };
        let both = first.or(second);
        assert_eq!(
            (both.port, both.workers, both.bind),
            (Some(Port(1)), Some(Count(3)), None)
        );
    }
}
