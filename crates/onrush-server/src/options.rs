//! Every option of the server, once: the flag, its environment variable, its key in the
//! configuration file and its text in `--help` are one field of [`Options`]. Must not know what an
//! option does.

use crate::units::{Rate, Size, SizeMax, SizeOrOff, Time};
use crate::written::{Switch, boolish, list};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum, ValueHint};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// What was said, on the command line, in the environment or in a file; `None` where nothing was.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Options {
    /// The folder to serve [default: .]
    #[arg(env = "ONRUSH_DIR", value_hint = ValueHint::DirPath, display_order = 0)]
    #[arg(help_heading = "What is served")]
    pub(crate) dir: Option<PathBuf>,

    /// What clients may change: put, delete, both, or none [default: none]
    ///
    /// Where writing is allowed, a missing folder is created.
    #[arg(long, env = "ONRUSH_ALLOW", value_name = "LIST", value_delimiter = ',')]
    #[arg(help_heading = "What is served", hide_possible_values = true)]
    #[serde(deserialize_with = "list")]
    pub(crate) allow: Option<Vec<Change>>,

    /// Serve names that begin with a dot too
    #[arg(long, env = "ONRUSH_HIDDEN", value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    #[arg(help_heading = "What is served")]
    #[serde(deserialize_with = "boolish")]
    pub(crate) hidden: Option<bool>,

    /// Serve a web site: index.html instead of a listing, and pages without a sandbox
    ///
    /// Without it HTML, SVG, other XML and scripts are sent with Content-Security-Policy: sandbox,
    /// so that what somebody uploads cannot act in the name of who opens it.
    #[arg(long, env = "ONRUSH_SITE", value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    #[arg(help_heading = "What is served")]
    #[serde(deserialize_with = "boolish")]
    pub(crate) site: Option<bool>,

    /// Read, count and throw away what is PUT, instead of storing it
    #[arg(long, env = "ONRUSH_SINK", value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    #[arg(help_heading = "What is served")]
    #[serde(deserialize_with = "boolish")]
    pub(crate) sink: Option<bool>,

    /// Media types by extension: a table of the configuration file only, since flags and variables
    /// have no form for pairs.
    #[arg(skip)]
    pub(crate) types: Option<BTreeMap<String, String>>,

    /// What an answered PUT or DELETE survives [default: full]
    ///
    /// full: a power cut. none: only the end of the process, for it skips the syncs.
    #[arg(
        long,
        env = "ONRUSH_DURABILITY",
        value_name = "WHAT",
        help_heading = "What is served"
    )]
    pub(crate) durability: Option<Durability>,

    /// Memory for small objects that are asked for often, or off [default: 64MiB]
    ///
    /// The default is lower where memory is: at most a twentieth of the machine's, and of any limit
    /// of the process's cgroups.
    ///
    /// What others change in the folder is seen within a second all the same, and what is changed
    /// through this server at once, unless by another name of the file (a link).
    #[arg(
        long,
        env = "ONRUSH_CACHE_SIZE",
        value_name = "SIZE",
        help_heading = "What is served"
    )]
    pub(crate) cache_size: Option<SizeOrOff>,

    /// The port to listen on; 0: any that is free [default: 8080]
    #[arg(
        short,
        long,
        env = "ONRUSH_PORT",
        value_name = "PORT",
        help_heading = "Where"
    )]
    pub(crate) port: Option<u16>,

    /// The address to listen on, or unix:PATH for a Unix socket [default: 127.0.0.1]
    ///
    /// 0.0.0.0 or :: listens on every address of the machine.
    #[arg(
        short,
        long,
        env = "ONRUSH_BIND",
        value_name = "ADDRESS",
        help_heading = "Where"
    )]
    pub(crate) bind: Option<Bind>,

    /// A host name that clients may ask for; several by repeating it or by commas
    ///
    /// On a loopback address requests for another host than localhost, a loopback address or such a
    /// name are answered 421: a web page could let its own name lead here. On other addresses every
    /// host is answered unless a name is given. The port does not matter. It holds for --admin too.
    #[arg(long, env = "ONRUSH_HOST", value_name = "NAME", value_delimiter = ',')]
    #[arg(help_heading = "Where", value_hint = ValueHint::Hostname)]
    #[serde(deserialize_with = "list")]
    pub(crate) host: Option<Vec<HostName>>,

    /// Connections the kernel queues before it refuses more [default: 4096]
    #[arg(long, env = "ONRUSH_BACKLOG", value_name = "N", help_heading = "Where")]
    pub(crate) backlog: Option<u32>,

    /// Accept a connection when its first bytes have come, or after a second [default: on]
    ///
    /// It halves the cost of connections for a single request. With off each is accepted at once.
    #[arg(long, env = "ONRUSH_DEFER_ACCEPT", value_name = "BOOL", num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    #[arg(help_heading = "Where")]
    #[serde(deserialize_with = "boolish")]
    pub(crate) defer_accept: Option<bool>,

    /// Serve /-/metrics, /-/health and /-/ready on a port of 127.0.0.1, or an address and port
    ///
    /// With same they are on the port that is served; no object can then be at or under /-/.
    #[arg(
        long,
        env = "ONRUSH_ADMIN",
        value_name = "WHERE",
        help_heading = "Where"
    )]
    pub(crate) admin: Option<AdminAt>,

    /// Worker threads [default: one for each core]
    #[arg(
        long,
        env = "ONRUSH_WORKERS",
        value_name = "N",
        help_heading = "Engine"
    )]
    pub(crate) workers: Option<u32>,

    /// How to wait for the network [default: auto]
    ///
    /// auto takes what is better of what works here, and says in the log what it took and why;
    /// io_uring insists on it.
    #[arg(
        long,
        env = "ONRUSH_DRIVER",
        value_name = "DRIVER",
        help_heading = "Engine"
    )]
    pub(crate) driver: Option<Driver>,

    /// Which worker serves a new connection [default: least-loaded]
    ///
    /// single: the first one, all of them; reuseport: as the kernel spreads them; round-robin: each
    /// in turn; least-loaded: the one that has the fewest.
    #[arg(
        long,
        env = "ONRUSH_PLACEMENT",
        value_name = "PLACEMENT",
        help_heading = "Engine"
    )]
    pub(crate) placement: Option<PlacementName>,

    /// Pass live connections from busy workers to idle ones [default: on]
    #[arg(
        long,
        env = "ONRUSH_REBALANCE",
        value_name = "SWITCH",
        help_heading = "Engine"
    )]
    pub(crate) rebalance: Option<Switch>,

    /// Receive buffers a worker posts to its ring; a power of two; io_uring only [default: 256]
    #[arg(
        long,
        env = "ONRUSH_RING_BUFFERS",
        value_name = "N",
        help_heading = "Engine"
    )]
    pub(crate) ring_buffers: Option<u16>,

    /// The size of each of them [default: 4KiB]
    #[arg(
        long,
        env = "ONRUSH_RING_BUFFER_SIZE",
        value_name = "SIZE",
        help_heading = "Engine"
    )]
    pub(crate) ring_buffer_size: Option<Size>,

    /// Memory for what is received and not dealt with yet, of all workers, or off [default: 256MiB]
    ///
    /// The default is lower where memory is: at most a fifth of the machine's, and of any limit of
    /// the process's cgroups. Each worker has its share, and never less than twice its
    /// receive buffers or 1MiB. When it runs short, the oldest partial request heads are answered
    /// 408, requests with a body 503, and clients that do not read their responses reset.
    #[arg(
        long,
        env = "ONRUSH_RECEIVE_MEMORY",
        value_name = "SIZE",
        help_heading = "Limits"
    )]
    pub(crate) receive_memory: Option<SizeMax>,

    /// Threads for file work that has to wait for a disk, at most [default: 16]
    #[arg(
        long,
        env = "ONRUSH_FILE_THREADS",
        value_name = "N",
        help_heading = "Engine"
    )]
    pub(crate) file_threads: Option<u32>,

    /// The largest request body; more is answered 413 [default: off, no limit]
    #[arg(
        long,
        env = "ONRUSH_BODY_MAX",
        value_name = "SIZE",
        help_heading = "Limits"
    )]
    pub(crate) body_max: Option<SizeMax>,

    /// The most path segments of a PUT, folders and object; more are answered 400 [default: 64]
    ///
    /// Objects that other programs have made deeper are read, listed and deleted as usual.
    #[arg(
        long,
        env = "ONRUSH_DEPTH_MAX",
        value_name = "N",
        help_heading = "Limits"
    )]
    pub(crate) depth_max: Option<u32>,

    /// Open connections at most [default: as descriptors allow]
    ///
    /// For one more, the one that has been idle longest is closed; when none is idle, the new one
    /// is answered 503.
    ///
    /// The default is the limit on open files (ulimit -Hn) less what workers and file threads
    /// need, and less an eighth of the rest, which is kept for files; the log says the figure.
    /// Files share the rest with connections: downloads that need an open file may take nearly
    /// three eighths and uploads two, with less when connections are many; beyond that they get
    /// 503.
    #[arg(
        long,
        env = "ONRUSH_CONNECTIONS_MAX",
        value_name = "N",
        help_heading = "Limits"
    )]
    pub(crate) connections_max: Option<u32>,

    /// The longest time a request's head may take, or off [default: 15s]
    #[arg(
        long,
        env = "ONRUSH_HEADER_TIMEOUT",
        value_name = "TIME",
        help_heading = "Limits"
    )]
    pub(crate) header_timeout: Option<Time>,

    /// The longest pause between two pieces of a request body, or off [default: 60s]
    #[arg(
        long,
        env = "ONRUSH_BODY_TIMEOUT",
        value_name = "TIME",
        help_heading = "Limits"
    )]
    pub(crate) body_timeout: Option<Time>,

    /// The longest pause in which a client takes no byte of its answer, or off [default: 60s]
    #[arg(
        long,
        env = "ONRUSH_WRITE_TIMEOUT",
        value_name = "TIME",
        help_heading = "Limits"
    )]
    pub(crate) write_timeout: Option<Time>,

    /// The minimum transfer rate, in bytes per second, of uploads and downloads, or off
    /// [default: 100]
    ///
    /// The average is over 30 s spent waiting for the client; a request that has waited less is not
    /// judged. Too slow a body is answered 408, too slow a reader is reset.
    #[arg(
        long,
        env = "ONRUSH_MIN_RATE",
        value_name = "RATE",
        help_heading = "Limits"
    )]
    pub(crate) min_rate: Option<Rate>,

    /// The longest silence between two requests of a connection, or off [default: 75s]
    #[arg(
        long,
        env = "ONRUSH_IDLE_TIMEOUT",
        value_name = "TIME",
        help_heading = "Limits"
    )]
    pub(crate) idle_timeout: Option<Time>,

    /// The longest time a request may take, to the end of its answer, or off [default: 24h]
    #[arg(
        long,
        env = "ONRUSH_TOTAL_TIMEOUT",
        value_name = "TIME",
        help_heading = "Limits"
    )]
    pub(crate) total_timeout: Option<Time>,

    /// How long requests may still take after SIGTERM [default: 30s]
    #[arg(
        long,
        env = "ONRUSH_DRAIN_TIMEOUT",
        value_name = "TIME",
        help_heading = "Limits"
    )]
    pub(crate) drain_timeout: Option<Time>,

    /// The form of the log, which goes to stderr [default: text]
    #[arg(
        long,
        env = "ONRUSH_LOG_FORMAT",
        value_name = "FORMAT",
        help_heading = "Log"
    )]
    pub(crate) log_format: Option<LogFormat>,

    /// What is logged: this and what is worse [default: info]
    #[arg(
        long,
        env = "ONRUSH_LOG_LEVEL",
        value_name = "LEVEL",
        help_heading = "Log"
    )]
    pub(crate) log_level: Option<LogLevel>,

    /// Log each request, at level info; costs a system call a request [default: off]
    #[arg(
        long,
        env = "ONRUSH_ACCESS_LOG",
        value_name = "SWITCH",
        help_heading = "Log"
    )]
    pub(crate) access_log: Option<Switch>,
}

impl Options {
    /// What `self` says, and where it says nothing, what `other` does.
    pub(crate) fn or(self, other: Options) -> Options {
        Options {
            dir: self.dir.or(other.dir),
            allow: self.allow.or(other.allow),
            hidden: self.hidden.or(other.hidden),
            site: self.site.or(other.site),
            sink: self.sink.or(other.sink),
            types: self.types.or(other.types),
            durability: self.durability.or(other.durability),
            cache_size: self.cache_size.or(other.cache_size),
            port: self.port.or(other.port),
            bind: self.bind.or(other.bind),
            host: self.host.or(other.host),
            backlog: self.backlog.or(other.backlog),
            defer_accept: self.defer_accept.or(other.defer_accept),
            admin: self.admin.or(other.admin),
            workers: self.workers.or(other.workers),
            driver: self.driver.or(other.driver),
            placement: self.placement.or(other.placement),
            rebalance: self.rebalance.or(other.rebalance),
            ring_buffers: self.ring_buffers.or(other.ring_buffers),
            ring_buffer_size: self.ring_buffer_size.or(other.ring_buffer_size),
            receive_memory: self.receive_memory.or(other.receive_memory),
            file_threads: self.file_threads.or(other.file_threads),
            body_max: self.body_max.or(other.body_max),
            depth_max: self.depth_max.or(other.depth_max),
            connections_max: self.connections_max.or(other.connections_max),
            header_timeout: self.header_timeout.or(other.header_timeout),
            body_timeout: self.body_timeout.or(other.body_timeout),
            write_timeout: self.write_timeout.or(other.write_timeout),
            min_rate: self.min_rate.or(other.min_rate),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            total_timeout: self.total_timeout.or(other.total_timeout),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            access_log: self.access_log.or(other.access_log),
        }
    }
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Change {
    /// Objects may be made and replaced.
    Put,
    /// Objects and empty folders may be deleted.
    Delete,
    /// Nothing: to take back what a file or the environment allows.
    None,
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        <Change as ValueEnum>::from_str(text, false)
            .map_err(|_| "a change is put, delete or none".to_owned())
    }
}

/// As `onrush_server::Durability`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    Full,
    None,
}

/// As `onrush::DriverPreference`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Driver {
    Auto,
    #[serde(rename = "io_uring")]
    #[value(name = "io_uring")]
    Uring,
    Epoll,
}

/// As `onrush::Placement`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PlacementName {
    Single,
    #[serde(rename = "reuseport")]
    #[value(name = "reuseport")]
    ReusePort,
    RoundRobin,
    LeastLoaded,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// As `tracing::Level`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Where to listen, without the port.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) enum Bind {
    /// A host's name or address; brackets around an IPv6 address are added.
    Host(String),
    /// The path of a Unix socket.
    Unix(String),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Bind, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() || path.contains('\0') {
                return Err("a Unix socket is written unix:PATH".to_owned());
            }
            return Ok(Bind::Unix(path.to_owned()));
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if bare.unwrap_or(text).parse::<std::net::Ipv6Addr>().is_ok() {
            return Ok(Bind::Host(format!("[{}]", bare.unwrap_or(text))));
        }
        if text.contains(':') {
            return Err("an address without a port; that is --port's".to_owned());
        }
        let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if text.is_empty() || !text.bytes().all(is_host) {
            return Err("not an address".to_owned());
        }
        Ok(Bind::Host(text.to_owned()))
    }
}

/// A name or IP address that `Host` may have; neither port nor brackets.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct HostName(pub(crate) String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<HostName, String> {
        match text.parse() {
            Ok(Bind::Host(name)) => {
                let bare = name
                    .strip_prefix('[')
                    .and_then(|rest| rest.strip_suffix(']'));
                Ok(HostName(bare.unwrap_or(&name).to_owned()))
            }
            _ => Err("not a host name or address without a port".to_owned()),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<HostName, String> {
        text.parse()
    }
}

/// Where figures and health are asked for.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "NumberOrText")]
pub(crate) enum AdminAt {
    /// Beside the objects.
    Same,
    /// An address and port of their own.
    Own(String),
}

/// A port may be written as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u16),
    Text(String),
}

impl TryFrom<NumberOrText> for AdminAt {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<AdminAt, String> {
        match value {
            NumberOrText::Number(port) => port.to_string().parse(),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for AdminAt {
    type Err = String;

    fn from_str(text: &str) -> Result<AdminAt, String> {
        if text == "same" {
            return Ok(AdminAt::Same);
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(AdminAt::Own(format!("127.0.0.1:{port}")));
        }
        let host = text
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok());
        match host.map(|(host, _)| host.parse()) {
            Some(Ok(Bind::Host(_))) => Ok(AdminAt::Own(text.to_owned())),
            _ => Err("neither same nor a port nor an address and port".to_owned()),
        }
    }
}

impl TryFrom<String> for Bind {
    type Error = String;

    fn try_from(text: String) -> Result<Bind, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_sockets_are_told_apart() {
        let host = |text: &str| Ok(Bind::Host(text.to_owned()));
        assert_eq!("127.0.0.1".parse(), host("127.0.0.1"));
        assert_eq!("localhost".parse(), host("localhost"));
        assert_eq!("::1".parse(), host("[::1]"));
        assert_eq!("[::]".parse(), host("[::]"));
        assert_eq!(
            "unix:/run/a b".parse(),
            Ok(Bind::Unix("/run/a b".to_owned()))
        );
        for wrong in [
            "",
            "unix:",
            "127.0.0.1:80",
            "[::1]:80",
            "a b",
            "x/y",
            "http://x",
            "[x]",
        ] {
            assert!(wrong.parse::<Bind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_hosts_have_no_port() {
        let name = |text: &str| Ok(HostName(text.to_owned()));
        assert_eq!("a.example".parse(), name("a.example"));
        assert_eq!("192.0.2.1".parse(), name("192.0.2.1"));
        assert_eq!("[::1]".parse(), name("::1"));
        for wrong in [
            "", "a:1", "[::1]:1", "http://a", "a/b", "a b", "u@a", "*", "unix:a",
        ] {
            assert!(wrong.parse::<HostName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn admin_is_here_or_elsewhere() {
        let own = |text: &str| Ok(AdminAt::Own(text.to_owned()));
        assert_eq!("same".parse(), Ok(AdminAt::Same));
        assert_eq!("9090".parse(), own("127.0.0.1:9090"));
        assert_eq!("[::1]:9".parse(), own("[::1]:9"));
        assert_eq!("localhost:0".parse(), own("localhost:0"));
        for wrong in ["", "x", "70000", ":80", "127.0.0.1", "127.0.0.1:x", "a b:1"] {
            assert!(wrong.parse::<AdminAt>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_said_first_wins() {
        let first = Options {
            port: Some(1),
            ..Options::default()
        };
        let second = Options {
            port: Some(2),
            workers: Some(3),
            ..Options::default()
        };
        let both = first.or(second);
        assert_eq!(
            (both.port, both.workers, both.bind),
            (Some(1), Some(3), None)
        );
    }
}
