//! The record of an unfinished upload, as it is stored: JSON. Bytes are in base64.

use super::super::digest::SavedDigest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onrush_store::{Condition, Kept, Version};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The maximum size of a record in bytes. The largest one has a key of 4 KiB.
pub(super) const BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(with = "InBase64")]
    pub(super) key: Vec<u8>,
    pub(super) owner: Option<String>,
    /// The length of the object in bytes, if it is known.
    pub(super) length: Option<u64>,
    /// The number of bytes that are kept.
    pub(super) offset: u64,
    /// See [`Kept::place`].
    #[serde(with = "InBase64")]
    pub(super) place: Vec<u8>,
    pub(super) condition: SavedCondition,
    /// The fields to store with the object.
    #[serde(with = "InBase64")]
    pub(super) metadata: Vec<u8>,
    /// The digests of the whole object, after `offset` bytes.
    pub(super) digests: Vec<SavedDigest>,
    pub(super) tus_metadata: Option<String>,
    /// When the offset was last changed, in seconds since 1970.
    pub(super) updated_s: u64,
}

/// A [`Condition`] as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SavedCondition {
    None,
    Absent,
    Present,
    Versions(Vec<String>),
}

impl SavedCondition {
    pub(super) fn new(condition: &Condition) -> SavedCondition {
        match condition {
            Condition::None => SavedCondition::None,
            Condition::Absent => SavedCondition::Absent,
            Condition::Present => SavedCondition::Present,
            Condition::Versions(versions) => {
                SavedCondition::Versions(versions.iter().map(Version::to_string).collect())
            }
        }
    }

    pub(super) fn condition(&self) -> Condition {
        match self {
            SavedCondition::None => Condition::None,
            SavedCondition::Absent => Condition::Absent,
            SavedCondition::Present => Condition::Present,
            SavedCondition::Versions(versions) => {
                let versions = versions.iter();
                let parse = |version: &String| Version::parse(version.as_bytes());
                Condition::Versions(versions.filter_map(parse).collect())
            }
        }
    }
}

impl Record {
    pub(super) fn parse(bytes: &[u8]) -> Option<Record> {
        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // A structure of strings and numbers always has a text.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn kept(&self) -> Kept {
        Kept {
            bytes: self.offset,
            place: self.place.clone(),
        }
    }

    /// The bytes that count against the limit of all uploads.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.length.unwrap_or(0).max(self.offset)
    }
}

/// How bytes are written.
struct InBase64;

impl InBase64 {
    fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}
