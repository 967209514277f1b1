//! Values of the configuration file with a form of their own: a list is an array or a string, a
//! switch is a boolean or a string, and the media types are a table.

use clap::ValueEnum;
use onrush_files::Types;
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
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

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Switch::On
    }
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
    Switch::deserialize(deserializer).map(|switch| Some(switch.is_on()))
}

/// Parses the value of a switch on the command line or in the environment.
pub(crate) fn bool_value(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "t" | "y" => Ok(true),
        "false" | "no" | "off" | "0" | "f" | "n" => Ok(false),
        _ => Err("write true or false, yes or no, on or off, 1 or 0".to_owned()),
    }
}

/// Deserializes the table of media types. Each pair is checked where it is read, so that an error
/// has its line.
pub(crate) fn types<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Types>, D::Error> {
    deserializer.deserialize_map(TypesTable).map(Some)
}

struct TypesTable;

impl<'de> Visitor<'de> for TypesTable {
    type Value = Types;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table such as { ts = \"text/plain\" }")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut table: M) -> Result<Types, M::Error> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        while let Some(extension) = table.next_key::<String>()? {
            let content_type = table.next_value_seed(ContentType(&extension))?;
            pairs.push((extension, content_type));
        }
        Types::new(pairs).map_err(M::Error::custom)
    }
}

/// Reads the media type of this extension.
struct ContentType<'e>(&'e str);

impl<'de> DeserializeSeed<'de> for ContentType<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        let content_type = String::deserialize(deserializer)?;
        match Types::new([(self.0, &content_type)]) {
            Ok(_) => Ok(content_type),
            Err(error) => Err(D::Error::custom(error)),
        }
    }
}
