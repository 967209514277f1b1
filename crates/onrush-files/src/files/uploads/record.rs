//! The record of an unfinished upload, as it is stored: JSON. Bytes are in base64.

use super::Parts;
use super::in_base64;
use crate::files::http::digest::SavedDigest;
use crate::shares::Holder;
use onrush_store::{Condition, PartialUpload, Version};
use serde::{Deserialize, Serialize};

/// The maximum size of a record in bytes. The largest one has a key of 4 KiB.
pub(super) const BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(with = "in_base64")]
    pub(super) key: Vec<u8>,
    pub(super) owner: Option<String>,
    /// The length of the object in bytes, if it is known.
    pub(super) length: Option<u64>,
    /// The number of bytes that are kept, from the first one.
    pub(super) offset: u64,
    /// The parts, if they arrive in any order.
    #[serde(default)]
    pub(super) parts: Option<Parts>,
    /// See [`NewUpload::is_partial`](super::NewUpload::is_partial).
    #[serde(default)]
    pub(super) is_partial: bool,
    /// See [`PartialUpload::place`].
    #[serde(with = "in_base64")]
    pub(super) place: Vec<u8>,
    pub(super) condition: SavedCondition,
    /// The fields to store with the object.
    #[serde(with = "in_base64")]
    pub(super) metadata: Vec<u8>,
    /// The digests of the whole object, after `offset` bytes.
    pub(super) digests: Vec<SavedDigest>,
    pub(super) tus_metadata: Option<String>,
    #[serde(flatten)]
    pub(super) used: Used,
    /// A server removes the upload, so no other one continues it.
    #[serde(default)]
    pub(super) is_removed: bool,
}

/// When an upload was used, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Used {
    /// When the offset was last changed.
    pub(super) updated_s: u64,
    /// When a server last began to continue it. Other servers cannot see that it still does.
    #[serde(default)]
    pub(super) claimed_s: u64,
}

impl Used {
    /// When the upload has been unused for `age_s`. To continue it without new bytes prolongs it by
    /// half of that: the store removes bytes by their age.
    pub(super) fn expires_s(&self, age_s: u64) -> u64 {
        let latest = self.updated_s.saturating_add(age_s / 2);
        let last = self.updated_s.max(self.claimed_s.min(latest));
        last.saturating_add(age_s)
    }
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

    pub(super) fn kept(&self) -> PartialUpload {
        PartialUpload {
            bytes: self.offset,
            place: self.place.clone(),
        }
    }

    /// Whose share it uses. The address of an anonymous client is not stored.
    pub(super) fn holder(&self) -> Holder {
        (self.owner.as_deref()).map_or_else(|| Holder::address(None), Holder::user)
    }

    /// The number of bytes that have arrived, in any order.
    pub(super) fn kept_bytes(&self) -> u64 {
        let parts = self.parts.as_ref();
        parts.map_or(self.offset, Parts::arrived_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_prolongs_an_upload_once() {
        let expires = |updated_s, claimed_s| {
            let used = Used {
                updated_s,
                claimed_s,
            };
            used.expires_s(100)
        };
        assert_eq!(expires(1000, 0), 1100);
        assert_eq!(expires(1000, 990), 1100);
        assert_eq!(expires(1000, 1030), 1130);
        assert_eq!(expires(1000, 5000), 1150);
        assert_eq!(expires(u64::MAX, u64::MAX), u64::MAX);
        // A record of an earlier version.
        let used: Used = serde_json::from_str(r#"{"updated_s":7}"#).expect("valid");
        assert_eq!(used.expires_s(100), 107);
    }
}
