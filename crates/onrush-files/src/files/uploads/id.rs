//! The id of an unfinished upload, and the URL and the key that contain it.

use crate::hex::hex;
use aws_lc_rs::digest::{Context, SHA256};
use onrush::Request;
use onrush_store::{Key, Result};
use std::fmt;

/// The parameter of the query that names an upload at the path of its object.
const PARAMETER: &str = "upload-id";

/// The folder of the records of uploads that continue, beneath that of the state of the server
/// ([`Key::state`]).
pub const UPLOAD_RECORDS: &str = "uploads";

/// The id of an upload. It cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UploadId([u8; 16]);

impl UploadId {
    /// A new id. `None`: the system has no random numbers.
    pub(in crate::files) fn random() -> Option<UploadId> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        Some(UploadId(id))
    }

    /// The id of the upload of `owner` that joins others to the object `key`. A client that sends
    /// the request again, because it has lost the response, names it again. Only who knows their
    /// ids knows this one.
    pub(super) fn of_joined(sources: &[(UploadId, Key)], key: &Key, owner: Option<&str>) -> Self {
        let mut hash = Context::new(&SHA256);
        hash.update(b"joined uploads");
        for text in [owner.unwrap_or_default().as_bytes(), key.as_bytes()] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        for (id, _) in sources {
            hash.update(&id.0);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hash.finish().as_ref()[..16]);
        UploadId(id)
    }

    /// Parses the text of an id: 32 hexadecimal digits in lower case.
    pub(super) fn parse(text: &[u8]) -> Option<UploadId> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut id = [0; 16];
        if text.len() != 2 * id.len() {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(text.chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(UploadId(id))
    }

    /// Whether a request is for an upload and not for the object at its path: it has the parameter,
    /// and a method that uploads have.
    pub(crate) fn is_named_by(request: &Request) -> bool {
        let is_method = matches!(request.method(), "HEAD" | "PATCH" | "DELETE");
        is_method
            && request
                .query()
                .is_some_and(|query| values(query).next().is_some())
    }

    /// The upload that a request names. `None` if it names none, or more than one, or the id is not
    /// valid.
    pub(crate) fn of_request(request: &Request) -> Option<UploadId> {
        UploadId::of_query(request.query()?)
    }

    /// The same of the query of a URL.
    pub(in crate::files) fn of_query(query: &str) -> Option<UploadId> {
        let mut values = values(query);
        let id = UploadId::parse(values.next()?.as_bytes());
        id.filter(|_| values.next().is_none())
    }

    /// The query of the URL of the upload.
    pub(crate) fn query(&self) -> String {
        format!("?{PARAMETER}={self}")
    }

    /// The key of its record.
    pub(super) fn key(&self) -> Result<Key> {
        Key::state(format!("{UPLOAD_RECORDS}/{self}").as_bytes())
    }

    /// The folder of all records.
    pub(super) fn folder() -> Result<Key> {
        Key::state(UPLOAD_RECORDS.as_bytes())
    }
}

fn values(query: &str) -> impl Iterator<Item = &str> {
    let pairs = query.split('&');
    pairs.filter_map(|pair| pair.strip_prefix(PARAMETER)?.strip_prefix('='))
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UploadId(…)") // It may be a secret.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_joined_uploads_depends_on_all_of_them() {
        let key = |text: &str| Key::parse(text.as_bytes()).expect("a key");
        let [one, two] = [1, 2].map(|byte| (UploadId([byte; 16]), key("part")));
        let both = [one.clone(), two.clone()];
        let id = UploadId::of_joined(&both, &key("a"), Some("b"));
        assert_eq!(UploadId::of_joined(&both, &key("a"), Some("b")), id);
        for other in [
            UploadId::of_joined(&[two, one.clone()], &key("a"), Some("b")),
            UploadId::of_joined(&[one], &key("a"), Some("b")),
            UploadId::of_joined(&both, &key("ab"), Some("")),
            UploadId::of_joined(&both, &key("a"), None),
        ] {
            assert_ne!(other, id);
        }
    }

    #[test]
    fn ids_have_one_text_and_differ() {
        let id = UploadId::random().expect("random numbers");
        assert_eq!(UploadId::parse(id.to_string().as_bytes()), Some(id));
        assert_ne!(UploadId::random(), Some(id));
        let text = id.to_string();
        for wrong in [
            "",
            "0",
            &text[1..],
            &format!("{text}0"),
            &"G".repeat(32),
            &"A".repeat(32),
        ] {
            assert_eq!(UploadId::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
