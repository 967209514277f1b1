//! The types of the values of the options for HTTPS, and their text forms.

use crate::options::toml_values::bool_value;
use crate::options::values::{Bind, HostName, NumberOrText};
use serde::Deserialize;
use std::path::PathBuf;
use std::str::FromStr;

/// `max-age` of `Strict-Transport-Security` without a value: a year, in seconds.
const HSTS_DEFAULT_S: u32 = 365 * 86_400;

/// The path of a file.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct FilePath(pub(crate) PathBuf);

impl FromStr for FilePath {
    type Err = String;

    fn from_str(text: &str) -> Result<FilePath, String> {
        match text.is_empty() || text.contains('\0') {
            true => Err("write the path of a file".to_owned()),
            false => Ok(FilePath(PathBuf::from(text))),
        }
    }
}

impl TryFrom<String> for FilePath {
    type Error = String;

    fn try_from(text: String) -> Result<FilePath, String> {
        text.parse()
    }
}

/// Whether the server makes its own certificate.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "BoolOrTexts")]
pub(crate) enum SelfSigned {
    Off,
    /// With these names besides the usual ones.
    On(Vec<HostName>),
}

impl FromStr for SelfSigned {
    type Err = String;

    fn from_str(text: &str) -> Result<SelfSigned, String> {
        match bool_value(text) {
            Ok(true) => Ok(SelfSigned::On(Vec::new())),
            Ok(false) => Ok(SelfSigned::Off),
            Err(_) => names(text.split(',')),
        }
    }
}

fn names<'t>(names: impl Iterator<Item = &'t str>) -> Result<SelfSigned, String> {
    let names = names.map(|name| name.trim().parse());
    names.collect::<Result<_, _>>().map(SelfSigned::On)
}

/// The form in a TOML file.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected true, false, text, or an array of text"
)]
enum BoolOrTexts {
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
}

impl TryFrom<BoolOrTexts> for SelfSigned {
    type Error = String;

    fn try_from(value: BoolOrTexts) -> Result<SelfSigned, String> {
        match value {
            BoolOrTexts::Bool(true) => Ok(SelfSigned::On(Vec::new())),
            BoolOrTexts::Bool(false) => Ok(SelfSigned::Off),
            BoolOrTexts::Text(text) => text.parse(),
            BoolOrTexts::Texts(texts) => names(texts.iter().map(String::as_str)),
        }
    }
}

/// Where requests are redirected to HTTPS.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "NumberOrText")]
pub(crate) enum RedirectAt {
    /// On this port of each TCP address of `--bind`.
    Port(u16),
    /// On an address in the form HOST:PORT.
    Address(String),
}

impl TryFrom<NumberOrText> for RedirectAt {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<RedirectAt, String> {
        match value {
            NumberOrText::Number(port) => port.to_string().parse(),
            NumberOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for RedirectAt {
    type Err = String;

    fn from_str(text: &str) -> Result<RedirectAt, String> {
        if let Ok(port) = text.parse() {
            return Ok(RedirectAt::Port(port));
        }
        match text.parse() {
            Ok(Bind::Host(_, Some(_))) => Ok(RedirectAt::Address(text.to_owned())),
            _ => Err("write a port, or an address with a port".to_owned()),
        }
    }
}

/// The `max-age` of `Strict-Transport-Security` (RFC 6797 §6.1.1) in seconds. `None`: the field is
/// not sent.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "BoolOrNumberOrText")]
pub(crate) struct Hsts(pub(crate) Option<u32>);

/// The form in a TOML file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected true, false, or a number of seconds")]
enum BoolOrNumberOrText {
    Bool(bool),
    Number(i64),
    Text(String),
}

impl TryFrom<BoolOrNumberOrText> for Hsts {
    type Error = String;

    fn try_from(value: BoolOrNumberOrText) -> Result<Hsts, String> {
        match value {
            BoolOrNumberOrText::Bool(is_on) => is_on.to_string().parse(),
            BoolOrNumberOrText::Number(seconds) => seconds.to_string().parse(),
            BoolOrNumberOrText::Text(text) => text.parse(),
        }
    }
}

impl FromStr for Hsts {
    type Err = String;

    fn from_str(text: &str) -> Result<Hsts, String> {
        // 0 and 1 are numbers of seconds here.
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let wrong = "write a number of seconds below 4294967296, or a time as in 24h or 365d";
            return seconds(text)
                .map(|seconds| Hsts(Some(seconds)))
                .ok_or_else(|| wrong.to_owned());
        }
        match bool_value(text) {
            Ok(true) => Ok(Hsts(Some(HSTS_DEFAULT_S))),
            Ok(false) => Ok(Hsts(None)),
            Err(_) => Err("write a number of seconds, a time as in 365d, or off".to_owned()),
        }
    }
}

/// The seconds of a number, which may have the unit s, m, h or d.
fn seconds(text: &str) -> Option<u32> {
    let digits = text.trim_end_matches(|last: char| !last.is_ascii_digit());
    let unit_s = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    digits.parse::<u32>().ok()?.checked_mul(unit_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_signed_certificate_may_have_names() {
        let on = |names: &[&str]| {
            let names = names.iter().map(|name| HostName((*name).to_owned()));
            Ok(SelfSigned::On(names.collect()))
        };
        assert_eq!("true".parse(), on(&[]));
        assert_eq!("off".parse(), Ok(SelfSigned::Off));
        assert_eq!("a.example,[::2]".parse(), on(&["a.example", "::2"]));
        for wrong in ["", "a,,b", "https://a", "a:1"] {
            assert!(wrong.parse::<SelfSigned>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn redirection_has_a_port() {
        assert_eq!("80".parse(), Ok(RedirectAt::Port(80)));
        let address = |text: &str| Ok(RedirectAt::Address(text.to_owned()));
        assert_eq!("[::]:80".parse(), address("[::]:80"));
        assert_eq!("a.example:0".parse(), address("a.example:0"));
        for wrong in ["", "x", "65536", "127.0.0.1", "unix:/run/s", "same"] {
            assert!(wrong.parse::<RedirectAt>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn hsts_is_a_number_of_seconds_or_a_switch() {
        for (text, seconds) in [
            ("true", Some(31_536_000)),
            ("on", Some(31_536_000)),
            ("0", Some(0)),
            ("1", Some(1)),
            ("4294967295", Some(u32::MAX)),
            ("90s", Some(90)),
            ("24h", Some(86_400)),
            ("365d", Some(31_536_000)),
            ("off", None),
            ("false", None),
        ] {
            assert_eq!(text.parse(), Ok(Hsts(seconds)), "{text}");
        }
        for wrong in ["", "-1", "+1", "1y", "1h30m", "4294967296", "99999d"] {
            assert!(wrong.parse::<Hsts>().is_err(), "{wrong}");
        }
    }
}
