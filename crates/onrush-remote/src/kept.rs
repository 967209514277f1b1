//! The state of an upload that continues, as an object: which parts the service has, and the bytes
//! that do not fill a part yet.
//!
//! Such an object (`.onrush/state/kept/UPLOAD.NAME`) is never changed: each [`keep`] makes another
//! one, with a new name. So a server that has recorded a name finds that state, whatever other
//! servers do meanwhile, and of two servers that continue one upload the record of one wins. The
//! name begins with the id of the multipart upload, which tells a sweep that it is in use.
//!
//! A part has a fixed place in the object, so a part that is sent again, after a crash or by
//! another server, has the same number and the same bytes. This matters for Ceph: it completes an
//! upload only if it has no parts beyond those that are named.
//!
//! [`keep`]: onrush_store::Upload::keep

use crate::multipart::{SavedParts, unique};
use crate::properties::head;
use crate::service::Service;
use bytes::Bytes;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutOptions, PutPayload};
use onrush_store::{Key, PartialUpload, Result, StoreError};
use std::fmt::Write;
use tokio::time::Instant;

/// The folder of these objects, beneath that of the state of the server.
pub(crate) const FOLDER: &str = "kept";
/// The folder of objects that are complete, and not yet published because of a condition.
pub(crate) const UNPUBLISHED: &str = "kept-objects";
/// The first line. It has the version of the form.
const FIRST_LINE: &str = "onrush upload 1";
/// What the name of an upload without parts begins with.
const NO_PARTS: &str = "new";
/// The longest beginning of a name. Those of AWS have fewer bytes.
const ID_BYTES_MAX: usize = 200;
/// More bytes than the lines of 10,000 parts have.
const LINES_BYTES_MAX: u64 = 1 << 20;

/// What the state of an upload says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptState {
    /// The path of the object that it becomes.
    pub(crate) path: Path,
    /// The number of bytes, of the parts and of the rest.
    pub(crate) bytes: u64,
    pub(crate) parts: Option<SavedParts>,
}

/// Where the state of an upload is: see [`PartialUpload::place`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartialAt {
    /// The name of the object; `None` if there are no bytes.
    pub(crate) name: Option<String>,
    /// How many bytes follow the lines of the object.
    pub(crate) rest: u64,
    /// What the object is known by: the mark of the parts, if there are any. It stays when a server
    /// takes the upload over, so a later attempt finds what an earlier one has published.
    pub(crate) mark: String,
    /// Differs for each server that continues the upload.
    owner: String,
}

impl PartialAt {
    pub(crate) fn new(name: Option<String>, rest: u64) -> PartialAt {
        PartialAt {
            name,
            rest,
            mark: unique(),
            owner: unique(),
        }
    }

    /// The same place with another owner.
    pub(crate) fn take_over(&mut self) {
        self.owner = unique();
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let name = self.name.as_deref().unwrap_or("-");
        format!("{name} {} {}.{}", self.rest, self.mark, self.owner).into_bytes()
    }

    /// Fails with [`StoreError::NotFound`] if it is the place of another store.
    pub(crate) fn parse(kept: &PartialUpload) -> Result<PartialAt> {
        let parse = || {
            let text = std::str::from_utf8(&kept.place).ok()?;
            let [name, rest, owner] = text.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            // A place of an earlier build has only an owner, which becomes the mark.
            let (mark, owner) = owner.split_once('.').unwrap_or((owner, ""));
            Some(PartialAt {
                name: (name != "-").then(|| name.to_owned()),
                rest: rest.parse().ok()?,
                mark: mark.to_owned(),
                owner: owner.to_owned(),
            })
        };
        parse().ok_or(StoreError::NotFound)
    }
}

/// What the names of the states of a multipart upload begin with. Two uploads may have the same
/// beginning; a sweep then takes both for in use.
pub(crate) fn name_of_upload(id: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '~');
    let chars = id.chars().take(ID_BYTES_MAX);
    chars
        .map(|char| if plain(char) { char } else { '_' })
        .collect()
}

/// Which upload the name of a state belongs to; `None` if it has no parts.
pub(crate) fn upload_of_name(name: &str) -> Option<&str> {
    let (upload, _) = name.rsplit_once('.')?;
    (upload != NO_PARTS).then_some(upload)
}

fn path_of(service: &Service, name: &str) -> Result<Path> {
    service.path(&Key::state(format!("{FOLDER}/{name}").as_bytes())?)
}

/// A path at which a multipart upload is completed before it is published under a condition.
pub(crate) fn unpublished_path(service: &Service) -> Result<Path> {
    service.path(&Key::state(
        format!("{UNPUBLISHED}/{}", unique()).as_bytes(),
    )?)
}

/// Whether a path is one of [`unpublished_path`].
pub(crate) fn is_unpublished(service: &Service, path: &Path) -> Result<bool> {
    let folder = service.folder_prefix(Some(&Key::state(UNPUBLISHED.as_bytes())?))?;
    Ok(path.as_ref().starts_with(&folder))
}

impl KeptState {
    fn lines(&self) -> String {
        let mut lines = format!("{FIRST_LINE}\nkey {}\nbytes {}\n", self.path, self.bytes);
        if let Some(parts) = &self.parts {
            let (path, id, mark) = (&parts.path, &parts.id, &parts.mark);
            let _ = write!(lines, "path {path}\nid {id}\nmark {mark}\n");
            for tag in &parts.tags {
                let _ = writeln!(lines, "part {tag}");
            }
        }
        lines + "\n"
    }

    /// The state in the lines, and where the rest begins. `None` if it is malformed.
    fn parse(bytes: &[u8]) -> Option<(KeptState, usize)> {
        let end = bytes.windows(2).position(|two| two == b"\n\n")? + 2;
        let mut lines = std::str::from_utf8(&bytes[..end - 2]).ok()?.split('\n');
        (lines.next()? == FIRST_LINE).then_some(())?;
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let path = Path::parse(value("key")?).ok()?;
        let bytes = value("bytes")?.parse().ok()?;
        let mut parts = None;
        if let Some(path) = value("path") {
            let mut saved = SavedParts {
                path: Path::parse(path).ok()?,
                id: value("id")?.to_owned(),
                mark: value("mark")?.to_owned(),
                tags: Vec::new(),
            };
            for line in lines {
                saved.tags.push(line.strip_prefix("part ")?.to_owned());
            }
            parts = Some(saved);
        }
        Some((KeptState { path, bytes, parts }, end))
    }

    /// Stores the state and the rest of the bytes. Returns its place.
    pub(crate) async fn store(
        &self,
        service: &Service,
        until: Instant,
        rest: Bytes,
    ) -> Result<PartialAt> {
        let upload = self.parts.as_ref().map(|parts| name_of_upload(&parts.id));
        let name = format!("{}.{}", upload.as_deref().unwrap_or(NO_PARTS), unique());
        let (client, path) = (service.client.clone(), path_of(service, &name)?);
        let mut place = PartialAt::new(Some(name), rest.len() as u64);
        if let Some(parts) = &self.parts {
            place.mark.clone_from(&parts.mark);
        }
        let payload: PutPayload = [Bytes::from(self.lines()), rest].into_iter().collect();
        let options = PutOptions::default();
        let put = async move { client.put_opts(&path, payload, options).await };
        service.start(until, put).await?;
        Ok(place)
    }

    /// The stored state and the rest of the bytes. Fails with [`StoreError::NotFound`] if they are
    /// gone.
    pub(crate) async fn load(
        service: &Service,
        until: Instant,
        name: &str,
        rest: u64,
    ) -> Result<(KeptState, Bytes)> {
        let bytes = get(service, until, name, None).await?;
        let (state, end) = KeptState::parse(&bytes).ok_or(StoreError::NotFound)?;
        let found = bytes.slice(end..);
        match found.len() as u64 == rest {
            true => Ok((state, found)),
            false => Err(StoreError::NotFound),
        }
    }
}

async fn get(
    service: &Service,
    until: Instant,
    name: &str,
    range: Option<GetRange>,
) -> Result<Bytes> {
    let (client, path) = (service.client.clone(), path_of(service, name)?);
    let options = GetOptions {
        range,
        ..GetOptions::default()
    };
    let get = async move { client.get_opts(&path, options).await?.bytes().await };
    service.start(until, get).await
}

/// Removes a state, but not what it says is stored elsewhere. Succeeds if there is none.
pub(crate) async fn remove(service: &Service, until: Instant, name: &str) -> Result<()> {
    remove_object(service, until, path_of(service, name)?).await
}

/// Removes an object. Succeeds if there is none.
pub(crate) async fn remove_object(service: &Service, until: Instant, path: Path) -> Result<()> {
    let client = service.client.clone();
    let delete = async move { ObjectStoreExt::delete(&client, &path).await };
    match service.start(until, delete).await {
        Err(StoreError::NotFound) => Ok(()),
        deleted => deleted,
    }
}

/// Where the parts become an object that the state with this name says; `None` if there is no such
/// state, or it has none.
pub(crate) async fn path_of_parts(
    service: &Service,
    until: Instant,
    name: &str,
) -> Result<Option<Path>> {
    Ok(match get_lines(service, until, name).await {
        Err(StoreError::NotFound) => None,
        bytes => KeptState::parse(&bytes?).and_then(|(state, _)| Some(state.parts?.path)),
    })
}

/// Whether there is a state with this name.
pub(crate) async fn is_there(service: &Service, until: Instant, name: &str) -> Result<bool> {
    match head(service, until, path_of(service, name)?).await {
        Err(StoreError::NotFound) => Ok(false),
        found => found.map(|_| true),
    }
}

/// The beginning of a state, with all its lines.
async fn get_lines(service: &Service, until: Instant, name: &str) -> Result<Bytes> {
    let lines = Some(GetRange::Bounded(0..LINES_BYTES_MAX));
    get(service, until, name, lines).await
}

/// Removes the state with this name, and its parts before it: what is left after a failure still
/// names what has to be removed. Succeeds if there is none.
pub(crate) async fn discard(service: &Service, until: Instant, name: &str) -> Result<()> {
    let bytes = match get_lines(service, until, name).await {
        Err(StoreError::NotFound) => return Ok(()),
        bytes => bytes?,
    };
    // Otherwise it is not an object of this program, which is removed as well.
    if let Some((KeptState { parts, .. }, _)) = KeptState::parse(&bytes)
        && let Some(parts) = parts
    {
        let (client, path, id) = (service.client.clone(), parts.path.clone(), parts.id);
        let abort = async move { client.abort_multipart(&path, &id).await };
        match service.start(until, abort).await {
            Ok(()) | Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        if is_unpublished(service, &parts.path)? {
            remove_object(service, until, parts.path).await?; // If it was completed.
        }
    }
    remove(service, until, name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path::parse(text).expect("a path")
    }

    #[test]
    fn states_are_what_they_were() {
        let parts = SavedParts {
            path: path("p/.onrush/state/kept-objects/1"),
            id: "2~a.b".to_owned(),
            mark: "0123".to_owned(),
            tags: vec!["\"x\"".to_owned(), "y-2".to_owned()],
        };
        let none = SavedParts {
            tags: Vec::new(),
            ..parts.clone()
        };
        for parts in [None, Some(none), Some(parts)] {
            let state = KeptState {
                path: path("p/a b/ü"),
                bytes: 17,
                parts,
            };
            let lines = state.lines();
            for rest in ["", "\n\nrest\n\n"] {
                let all = format!("{lines}{rest}");
                let parsed = KeptState::parse(all.as_bytes());
                assert_eq!(parsed, Some((state.clone(), lines.len())));
            }
            assert_eq!(KeptState::parse(&lines.as_bytes()[..lines.len() - 1]), None);
        }
        for wrong in ["", "\n\n", "onrush upload 2\nkey a\nbytes 1\n\n", "x\n\ny"] {
            assert_eq!(KeptState::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn places_have_an_owner() {
        for name in [None, Some("new.1".to_owned())] {
            let mut place = PartialAt::new(name, 7);
            let kept = |place: &PartialAt| PartialUpload {
                bytes: 9,
                place: place.to_bytes(),
            };
            let first = kept(&place);
            assert_eq!(PartialAt::parse(&first), Ok(place.clone()));
            place.take_over();
            assert_ne!(kept(&place), first);
            assert_eq!(
                PartialAt::parse(&first).map(|first| first.mark),
                Ok(place.mark)
            );
        }
        let old = PartialUpload {
            bytes: 9,
            place: b"new.1 7 0123".to_vec(),
        };
        let mut place = PartialAt::parse(&old).expect("a place without a mark");
        place.take_over();
        assert_eq!(place.mark, "0123");
        for wrong in ["", "a", "a b c", "a 1", "a/12/c5/100"] {
            let kept = PartialUpload {
                bytes: 1,
                place: wrong.into(),
            };
            assert_eq!(
                PartialAt::parse(&kept),
                Err(StoreError::NotFound),
                "{wrong}"
            );
        }
    }

    #[test]
    fn names_tell_their_upload() {
        for (id, upload) in [("2~aB-1", "2~aB-1"), ("a.b/c+d=", "a_b_c_d_")] {
            let name = format!("{}.{}", name_of_upload(id), unique());
            assert_eq!(upload_of_name(&name), Some(upload));
            assert!(Key::state(name.as_bytes()).is_ok());
        }
        assert_eq!(upload_of_name(&format!("{NO_PARTS}.{}", unique())), None);
        assert_eq!(name_of_upload(&"x".repeat(1000)).len(), ID_BYTES_MAX);
    }
}
