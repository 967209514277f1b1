//! Names that say what the content is: an object in a folder `cas` is named by its SHA-256, as in
//! the HTTP caches of Bazel. A body that differs is refused when it has arrived, and not stored,
//! however it is sent.

use crate::files::http::digest::{Algorithm, Digests, MISMATCH};
use crate::files::http::http_error::HttpError;
use crate::files::shared::objects::Objects;
use crate::files::shared::stored_fields;
use onrush_store::{Key, Kind};

/// The folder of such names, wherever it is.
const FOLDER: &[u8] = b"cas";

const NO_DIGEST: HttpError = HttpError::new(
    400,
    "an object in a folder cas is named by its SHA-256: 64 hexadecimal digits in lower case",
);

const NO_CODING: HttpError = HttpError::new(
    415,
    "an object in a folder cas is named by its bytes, so it has no Content-Encoding",
);

const NOT_COPIED: HttpError = HttpError::new(
    403,
    "an object in a folder cas is created by an upload, so that its content is compared",
);

impl Objects {
    /// Adds the demand of the name `key` to those of an upload, if names are digests here.
    pub(in crate::files) fn demand_of_name(
        &self,
        key: &Key,
        digests: &mut Digests,
    ) -> Result<(), HttpError> {
        match self.options.content_addressed {
            true => demand_of_name(key, digests),
            false => Ok(()),
        }
    }

    /// The fields to store with an object of this name, of those that a client has sent. None if
    /// the name is a digest: all clients get these bytes as they are, and the first one does not
    /// decide how others read them. A content coding is refused.
    pub(in crate::files) fn fields_of_name(
        &self,
        key: &Key,
        metadata: Vec<u8>,
    ) -> Result<Vec<u8>, HttpError> {
        let is_digest = folder_and_name(key).0 == FOLDER;
        match self.options.content_addressed && is_digest {
            true if stored_fields::has_coding(&metadata) => Err(NO_CODING),
            true => Ok(Vec::new()),
            false => Ok(metadata),
        }
    }

    /// Refuses to copy or move to a name that says what the content is, or a folder, which may
    /// contain such names.
    pub(in crate::files) fn check_copied_name(
        &self,
        to: &Key,
        kind: Kind,
    ) -> Result<(), HttpError> {
        let is_digest = kind == Kind::Directory || folder_and_name(to).0 == FOLDER;
        match self.options.content_addressed && is_digest {
            true => Err(NOT_COPIED),
            false => Ok(()),
        }
    }
}

fn folder_and_name(key: &Key) -> (&[u8], &[u8]) {
    let pair = |(_, name), segment| (name, segment);
    key.segments().fold((&b""[..], &b""[..]), pair)
}

fn demand_of_name(key: &Key, digests: &mut Digests) -> Result<(), HttpError> {
    let (folder, name) = folder_and_name(key);
    if folder != FOLDER {
        return Ok(());
    }
    let digest = parse_digest(name).ok_or(NO_DIGEST)?;
    digests.demand(Algorithm::Sha256, digest).ok_or(MISMATCH)
}

fn parse_digest(name: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    (name.len() == 64).then(|| name.chunks(2).map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_cas_demand_a_digest() {
        let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let demands = |key: &str| {
            let mut digests = Digests::default();
            let demanded = demand_of_name(&Key::parse(key.as_bytes()).unwrap(), &mut digests);
            demanded.map(|()| !digests.is_empty())
        };
        for key in [
            "cas",
            "ac/x",
            "cas/a/x",
            "a/x",
            &format!("ac/{digest}"),
            digest,
        ] {
            assert_eq!(demands(key), Ok(false), "{key}");
        }
        assert_eq!(demands(&format!("cas/{digest}")), Ok(true));
        assert_eq!(demands(&format!("a/b/cas/{digest}")), Ok(true));
        for name in [
            "x",
            &digest[1..],
            &format!("{digest}0"),
            &digest.to_uppercase(),
        ] {
            assert_eq!(demands(&format!("cas/{name}")), Err(NO_DIGEST), "{name}");
        }
        let mut digests = Digests::default();
        let other = digests.demand(Algorithm::Sha256, vec![0; 32]);
        assert!(other.is_some());
        let key = Key::parse(format!("cas/{digest}").as_bytes()).unwrap();
        assert_eq!(demand_of_name(&key, &mut digests), Err(MISMATCH));
    }
}
