//! Values of the configuration file with two forms: a list is an array or a string, a switch is a
//! boolean or a string.

use clap::ValueEnum;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::str::FromStr;

/// A list in a configuration file: an array, or a string with commas as on the command line.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    let parts = match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => text.split(',').map(str::to_owned).collect(),
        OneOrMany::Many(parts) => parts,
    };
    let parse = |part: String| {
        let wrong = |error: String| D::Error::custom(format!("'{}': {error}", part.escape_debug()));
        part.parse().map_err(wrong)
    };
    parts
        .into_iter()
        .map(parse)
        .collect::<Result<_, _>>()
        .map(Some)
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected text, or an array of text")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A switch with a value, so that a flag can disable what an environment variable enables.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(try_from = "BoolOrText")]
pub(crate) enum Switch {
    #[value(alias = "true")]
    On,
    #[value(alias = "false")]
    Off,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected true, false, \"on\" or \"off\"")]
enum BoolOrText {
    Bool(bool),
    Text(String),
}

impl TryFrom<BoolOrText> for Switch {
    type Error = String;

    fn try_from(value: BoolOrText) -> Result<Switch, String> {
        let is_on = match &value {
            BoolOrText::Bool(is_on) => *is_on,
            BoolOrText::Text(text) => match text.as_str() {
                "on" | "true" => true,
                "off" | "false" => false,
                _ => return Err("write true, false, \"on\" or \"off\"".to_owned()),
            },
        };
        Ok(if is_on { Switch::On } else { Switch::Off })
    }
}

/// Deserializes an optional switch as a boolean.
pub(crate) fn boolish<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<bool>, D::Error> {
    Switch::deserialize(deserializer).map(|switch| Some(switch == Switch::On))
}
