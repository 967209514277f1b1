//! The value of `--quota`: `PREFIX=SIZE`.

use crate::options::units::Size;
use onrush_store::{Key, Quota};
use serde::Deserialize;
use std::str::FromStr;

/// A limit on the objects beneath a folder.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct QuotaOf(pub(crate) Quota);

impl FromStr for QuotaOf {
    type Err = String;

    fn from_str(text: &str) -> Result<QuotaOf, String> {
        const FORM: &str = "write a quota as /=100GiB or /folder=5GiB";
        let (prefix, size) = text.rsplit_once('=').ok_or(FORM)?;
        let folder = prefix.strip_prefix('/').ok_or(FORM)?;
        let folder = folder.strip_suffix('/').unwrap_or(folder);
        let prefix = match folder.is_empty() {
            true => None,
            false => {
                let key = Key::parse(folder.as_bytes()).map_err(|_| FORM)?;
                Some(key)
                    .filter(|key| !key.reserved())
                    .ok_or(FORM)
                    .map(Some)?
            }
        };
        let size: Size = size.trim().parse()?;
        Ok(QuotaOf(Quota {
            prefix,
            bytes_max: size.bytes,
        }))
    }
}

impl TryFrom<String> for QuotaOf {
    type Error = String;

    fn try_from(text: String) -> Result<QuotaOf, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_path_and_a_size() {
        let of = |text: &str| text.parse::<QuotaOf>().map(|quota| quota.0);
        let top = of("/=1GiB").expect("a quota");
        assert_eq!((top.prefix, top.bytes_max), (None, 1 << 30));
        let folder = of("/a b/c=d/=5").expect("a quota");
        assert_eq!(folder.prefix, Key::parse(b"a b/c=d").ok());
        for wrong in [
            "",
            "5GiB",
            "a=5",
            "/a",
            "/a=x",
            "/a//b=1",
            "/../a=1",
            "/.onrush=1",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
