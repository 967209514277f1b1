//! What a server shows after a power cut, compared with what it may show.

use crate::load::{Histories, Version, possible};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use xtask::load::body::identify;
use xtask::load::http::Client;
use xtask::shell::Outcome;

/// The folder of the store itself.
const OWN: &str = ".onrush";

/// What is wrong with the objects of a server that was started after a power cut at a position of
/// the log. `data` is the folder that it serves. Fails if a request fails.
pub(crate) fn check(
    server: SocketAddr,
    data: &Path,
    histories: &Histories,
    at: usize,
) -> Outcome<Vec<String>> {
    let mut http = Client::new(server);
    let mut wrong = Vec::new();
    for (key, history) in histories {
        let response = http.get(&format!("/{key}"), "");
        let response = response.map_err(|error| format!("GET {key}: {error}"))?;
        let states = possible(history, at);
        wrong.extend(match response.status {
            404 if states.contains(&None) => None,
            404 => Some(format!("{key} is lost, it should be {}", shown(&states))),
            200 => content(key, &response.body, response.tag.as_deref(), &states).err(),
            status => Some(format!("{key}: status {status}")),
        });
    }
    let objects = files(data)?.into_iter();
    let objects = objects.filter_map(|path| Some(path.strip_prefix(data).ok()?.to_owned()));
    for path in objects.filter(|path| !path.starts_with(OWN)) {
        let is_known = path.to_str().is_some_and(|key| histories.contains_key(key));
        if !is_known {
            wrong.push(format!("{} is no object", path.display()));
        }
    }
    let staged = staged(data)?;
    if staged > 0 {
        wrong.push(format!("{staged} staged files were not removed"));
    }
    // The store goes on.
    for expected in [201, 204] {
        match http.put("/new/object", "", b"content", false) {
            Ok(response) if response.status == expected => {}
            other => wrong.push(format!("a new PUT gets {other:?}")),
        }
    }
    Ok(wrong)
}

/// Fails with what is wrong with an object.
fn content(
    key: &str,
    body: &[u8],
    tag: Option<&str>,
    states: &[Option<&Version>],
) -> Result<(), String> {
    let id = identify(key, body)?;
    let version = states.iter().flatten().find(|version| version.id == id);
    let Some(version) = version else {
        return Err(format!("{key} is {id}, it should be {}", shown(states)));
    };
    match (&version.tag, tag) {
        (Some(then), Some(now)) if then != now => Err(format!(
            "{key}: the entity tag of {id} was {then} and is {now}"
        )),
        (_, None) => Err(format!("{key}: {id} has no entity tag")),
        _ => Ok(()),
    }
}

fn shown(states: &[Option<&Version>]) -> String {
    let states = states.iter().map(|state| match state {
        Some(version) => version.id.to_string(),
        None => "absent".to_owned(),
    });
    states.collect::<Vec<_>>().join(" or ")
}

/// The number of files of uploads that are not complete.
pub(crate) fn staged(data: &Path) -> Outcome<usize> {
    Ok(files(&data.join(OWN).join("staging"))?.len())
}

/// All files below a folder, which may be absent.
fn files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let failed = |error| format!("{}: {error}", folder.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        match entry.file_type().map_err(failed)?.is_dir() {
            true => all.extend(files(&entry.path())?),
            false => all.push(entry.path()),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask::load::body::{Id, body};

    #[test]
    fn wrong_objects_are_found() {
        let version = |sequence, tag: &str| Version {
            id: Id {
                writer: 1,
                sequence,
            },
            tag: Some(tag.to_owned()),
        };
        let now = version(5, "\"x\"");
        let states = [Some(&now), None];
        let whole = body("k", now.id, 100);
        assert_eq!(content("k", &whole, Some("\"x\""), &states), Ok(()));
        let found = |body: &[u8], tag: Option<&str>| content("k", body, tag, &states).unwrap_err();
        assert!(found(&whole, Some("\"y\"")).contains("tag of write 5"));
        assert!(found(&whole, None).contains("no entity tag"));
        assert!(found(&whole[..50], Some("\"x\"")).contains("torn"));
        let old = body("k", version(4, "").id, 100);
        assert!(found(&old, Some("\"x\"")).contains("should be write 5 of writer 1 or absent"));
    }
}
