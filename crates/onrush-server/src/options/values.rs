//! The types of option values and their text forms. Sizes, times and rates are in `units`.

use clap::ValueEnum;
use onrush::{DriverPreference, Placement};
use onrush_store::NamePattern;
use serde::Deserialize;
use std::str::FromStr;

/// A kind of change that clients may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Change {
    /// Objects may be created and replaced.
    Put,
    /// Objects and empty folders may be deleted.
    Delete,
    /// Folders may be deleted with everything in them, and so may objects.
    DeleteFolders,
    /// No change. It overrides a file or an environment variable that allows changes.
    None,
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        <Change as ValueEnum>::from_str(text, false)
            .map_err(|_| "a change is put, delete, delete-folders or none".to_owned())
    }
}

/// A pattern of names that begin with a dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShowName(pub(crate) NamePattern);

impl FromStr for ShowName {
    type Err = String;

    fn from_str(text: &str) -> Result<ShowName, String> {
        let pattern = NamePattern::parse(text);
        pattern.map(ShowName).map_err(str::to_owned)
    }
}

/// As `onrush_files::Durability`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    Full,
    None,
}

impl From<Durability> for onrush_files::Durability {
    fn from(level: Durability) -> Self {
        match level {
            Durability::Full => onrush_files::Durability::Full,
            Durability::None => onrush_files::Durability::None,
        }
    }
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

impl From<Driver> for DriverPreference {
    fn from(driver: Driver) -> DriverPreference {
        match driver {
            Driver::Auto => DriverPreference::Auto,
            Driver::Uring => DriverPreference::Uring,
            Driver::Epoll => DriverPreference::Epoll,
        }
    }
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

impl From<PlacementName> for Placement {
    fn from(name: PlacementName) -> Placement {
        match name {
            PlacementName::Single => Placement::Single,
            PlacementName::ReusePort => Placement::ReusePort,
            PlacementName::RoundRobin => Placement::RoundRobin,
            PlacementName::LeastLoaded => Placement::LeastLoaded,
        }
    }
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AccessLogFormat {
    Text,
    Json,
    // The format of Apache.
    Combined,
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

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bind {
    /// A host name or IP address (IPv6 in brackets), and the port, if one is given.
    Host(String, Option<u16>),
    /// The path of a Unix socket.
    Unix(String),
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Bind, String> {
        const FORM: &str = "write an address as HOST, HOST:PORT, [IPV6]:PORT or unix:PATH";
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() || path.contains('\0') {
                return Err("write a Unix socket as unix:PATH".to_owned());
            }
            return Ok(Bind::Unix(path.to_owned()));
        }
        if let Some(host) = host(text) {
            return Ok(Bind::Host(host, None));
        }
        let (before, port) = text.rsplit_once(':').ok_or(FORM)?;
        let is_bare = before.contains(':') && !before.starts_with('[');
        let host = host(before).filter(|_| !is_bare).ok_or(FORM)?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse().ok().filter(|_| is_number) {
            Some(port) => Ok(Bind::Host(host, Some(port))),
            None => Err("a port is a number from 0 to 65535".to_owned()),
        }
    }
}

/// A host name or IP address without a port. An IPv6 address gets brackets.
fn host(text: &str) -> Option<String> {
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if bare.unwrap_or(text).parse::<std::net::Ipv6Addr>().is_ok() {
        return Some(format!("[{}]", bare.unwrap_or(text)));
    }
    let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let is_name = !text.is_empty() && text.bytes().all(is_host);
    is_name.then(|| text.to_owned())
}

/// A host name or IP address to accept in `Host`, without port and brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName(pub(crate) String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<HostName, String> {
        let Some(name) = host(text) else {
            return Err("write a host name or address without a port".to_owned());
        };
        let bare = name
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        Ok(HostName(bare.unwrap_or(&name).to_owned()))
    }
}

/// Where metrics and health are served.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "NumberOrText")]
pub(crate) enum AdminAt {
    /// On the address of the objects.
    Same,
    /// On a separate address, in the form HOST:PORT.
    Own(String),
}

/// The form in a TOML file, where a port may be a number.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a port, or an address such as \"127.0.0.1:80\""
)]
pub(crate) enum NumberOrText {
    Number(i64),
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
        match text.parse() {
            Ok(Bind::Host(_, Some(_))) => Ok(AdminAt::Own(text.to_owned())),
            Ok(Bind::Unix(_)) => {
                Err("write same, a port, or an address with a port, not a Unix socket".to_owned())
            }
            _ => Err("write same, a port, or an address with a port".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_unix_sockets_are_distinguished() {
        let host = |text: &str, port| Ok(Bind::Host(text.to_owned(), port));
        assert_eq!("127.0.0.1".parse(), host("127.0.0.1", None));
        assert_eq!("127.0.0.1:80".parse(), host("127.0.0.1", Some(80)));
        assert_eq!("localhost".parse(), host("localhost", None));
        assert_eq!("a.example:0".parse(), host("a.example", Some(0)));
        assert_eq!("::1".parse(), host("[::1]", None));
        assert_eq!("::1:80".parse(), host("[::1:80]", None));
        assert_eq!("[::]".parse(), host("[::]", None));
        assert_eq!("[::1]:65535".parse(), host("[::1]", Some(65535)));
        assert_eq!(
            "unix:/run/a b".parse(),
            Ok(Bind::Unix("/run/a b".to_owned()))
        );
        for wrong in [
            "",
            "unix:",
            ":80",
            "127.0.0.1:",
            "127.0.0.1:+1",
            "127.0.0.1:65536",
            "[::1]80",
            "[::1]:",
            "a:b:80",
            "a b",
            "x/y",
            "http://x",
            "[x]",
        ] {
            assert!(wrong.parse::<Bind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn host_names_have_no_port() {
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
    fn admin_shares_the_address_or_has_its_own() {
        let own = |text: &str| Ok(AdminAt::Own(text.to_owned()));
        assert_eq!("same".parse(), Ok(AdminAt::Same));
        assert_eq!("9090".parse(), own("127.0.0.1:9090"));
        assert_eq!("[::1]:9".parse(), own("[::1]:9"));
        assert_eq!("localhost:0".parse(), own("localhost:0"));
        for wrong in ["", "x", "70000", ":80", "127.0.0.1", "127.0.0.1:x", "a b:1"] {
            assert!(wrong.parse::<AdminAt>().is_err(), "{wrong}");
        }
        let unix = "unix:/run/x".parse::<AdminAt>().expect_err("not supported");
        assert!(unix.contains("not a Unix socket"), "{unix}");
    }
}
