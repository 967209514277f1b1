//! Where the objects are: `s3://BUCKET/PREFIX`.

use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "s3://";

/// A bucket, and the beginning of the keys in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    bucket: String,
    /// Without slashes at its ends; may be empty.
    prefix: String,
}

impl Location {
    /// Whether the text has a scheme, as only a location has, perhaps an invalid one. The path of a
    /// folder has none.
    ///
    /// ```
    /// # use onrush_remote::Location;
    /// assert!(Location::has_scheme("s3://bucket/prefix"));
    /// assert!(!Location::has_scheme("./data"));
    /// ```
    pub fn has_scheme(text: &str) -> bool {
        text.split_once("://").is_some()
    }

    /// The name of the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The beginning of the keys, without slashes at its ends. Empty if the whole bucket is served.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// The text is not `s3://BUCKET` or `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLocation(&'static str);

impl fmt::Display for InvalidLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidLocation {}

impl FromStr for Location {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Location, InvalidLocation> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(InvalidLocation(
                "a location is s3://BUCKET or s3://BUCKET/PREFIX",
            ));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_valid) {
            return Err(InvalidLocation(
                "the name of a bucket consists of letters, digits, dots and dashes",
            ));
        }
        let bad = |segment: &str| {
            matches!(segment, "" | "." | "..") || segment.contains(char::is_control)
        };
        if !prefix.is_empty() && prefix.split('/').any(bad) {
            return Err(InvalidLocation(
                "the prefix has an empty segment, a segment of dots, or a control character",
            ));
        }
        Ok(Location {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        match self.prefix.is_empty() {
            true => Ok(()),
            false => write!(f, "/{}", self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_have_a_bucket_and_perhaps_a_prefix() {
        for (text, bucket, prefix, shown) in [
            ("s3://a", "a", "", "s3://a"),
            ("s3://a/", "a", "", "s3://a"),
            ("s3://a.b-c/d/e", "a.b-c", "d/e", "s3://a.b-c/d/e"),
            ("s3://a/d/", "a", "d", "s3://a/d"),
        ] {
            let location: Location = text.parse().expect("valid");
            assert_eq!((location.bucket(), location.prefix()), (bucket, prefix));
            assert_eq!(location.to_string(), shown);
        }
        for text in [
            "s3://",
            "s3:///a",
            "s3://a b",
            "s3://a//b",
            "s3://a/../b",
            "s3://a/b\n",
            "gs://a",
            "a",
        ] {
            assert!(text.parse::<Location>().is_err(), "{text}");
        }
    }
}
