//! The decision on access: rights, by path, and the identity that has them. It
//! depends neither on HTTP nor on how a client proves its identity.
//!
//! A rule gives rights to a prefix of keys. Of the rules that cover a key, the one with the longest
//! prefix counts, and the others do not. Prefixes are compared with decoded keys by whole segments:
//! `/a` covers `a`, `a/` and `a/b`, and not `ab`. Since [`Files`](crate::Files) removes dot
//! segments and empty segments before, all spellings of a path have the same rule.

use onrush_store::Key;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The object that a folder of a site serves instead of a listing.
pub(crate) const INDEX: &str = "index.html";

/// A set of rights.
///
/// ```
/// use onrush_files::Rights;
///
/// let rights: Rights = "read,create".parse()?;
/// assert!(rights.contains(Rights::CREATE) && !rights.contains(Rights::WRITE));
/// assert_eq!("write".parse(), Ok(Rights::WRITE));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// No right.
    pub const NONE: Rights = Rights(0);
    /// To read objects: `GET` and `HEAD`.
    pub const READ: Rights = Rights(1);
    /// To list folders: `GET` and `HEAD` of a path that ends with a slash.
    pub const LIST: Rights = Rights(2);
    /// To `PUT` objects that do not exist.
    pub const CREATE: Rights = Rights(4);
    /// To `PUT` objects, also those that exist.
    pub const WRITE: Rights = Rights(4 | 8);
    /// To `DELETE` objects and folders.
    pub const DELETE: Rights = Rights(16);
    /// All rights.
    pub const ALL: Rights = Rights(31);

    /// Whether `self` has all of these rights.
    pub fn contains(self, rights: Rights) -> bool {
        self.0 & rights.0 == rights.0
    }

    /// Whether `self` has one of these rights.
    pub fn intersects(self, rights: Rights) -> bool {
        self.0 & rights.0 != 0
    }

    /// The rights of both.
    #[must_use]
    pub fn union(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// The rights that both have.
    #[must_use]
    pub fn intersection(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }

    /// The rights that a signed URL of this method can give.
    pub(crate) fn of_signed(method: &str) -> Rights {
        match method {
            "GET" | "HEAD" => Rights::READ.union(Rights::LIST),
            "PUT" => Rights::WRITE,
            _ => Rights::NONE,
        }
    }

    /// The right that a request needs. A method that only a later version knows needs all rights,
    /// so it cannot bypass the check.
    pub(crate) fn needed(method: &str, is_folder: bool) -> Rights {
        match method {
            "GET" | "HEAD" if is_folder => Rights::LIST,
            "GET" | "HEAD" => Rights::READ,
            "PUT" | "POST" => Rights::CREATE,
            "DELETE" => Rights::DELETE,
            // Of the source. `Files` checks the destination.
            "COPY" => Rights::READ,
            "MOVE" => Rights::READ.union(Rights::DELETE),
            "OPTIONS" => Rights::NONE,
            // `Files` checks the right to list of a path without a slash at its end.
            "PROPFIND" if is_folder => Rights::LIST,
            "PROPFIND" => Rights::READ,
            // `Files` checks the right to replace what exists.
            "MKCOL" | "LOCK" | "UNLOCK" => Rights::CREATE,
            "PROPPATCH" => Rights::WRITE,
            _ => Rights::ALL,
        }
    }
}

/// The names of rights in text. A later one must not be contained in an earlier one.
const NAMES: [(&str, Rights); 5] = [
    ("read", Rights::READ),
    ("list", Rights::LIST),
    ("write", Rights::WRITE),
    ("create", Rights::CREATE),
    ("delete", Rights::DELETE),
];

/// Names separated by commas, such as `read,list`; or `all` or `none`.
impl FromStr for Rights {
    type Err = String;

    fn from_str(text: &str) -> Result<Rights, String> {
        match text {
            "all" => return Ok(Rights::ALL),
            "none" => return Ok(Rights::NONE),
            _ => {}
        }
        let mut rights = Rights::NONE;
        for name in text.split(',') {
            let found = NAMES.iter().find(|(known, _)| *known == name.trim());
            let (_, right) =
                found.ok_or("a right is read, list, create, write, delete, all or none")?;
            rights = rights.union(*right);
        }
        Ok(rights)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        if rest == Rights::NONE {
            return f.write_str("none");
        }
        let mut separator = "";
        for (name, right) in NAMES {
            if rest.contains(right) {
                write!(f, "{separator}{name}")?;
                separator = ",";
                rest = Rights(rest.0 & !right.0);
            }
        }
        Ok(())
    }
}

/// Rights by prefix of keys. Without a rule that covers a key, there are no rights.
///
/// ```
/// use onrush_files::{PathRights, Rights};
///
/// let mut rights = PathRights::default();
/// rights.set("/", Rights::READ)?;
/// rights.set("/ann/", Rights::ALL)?;
/// assert_eq!(rights.at(b"ann/notes.txt"), Rights::ALL);
/// assert_eq!(rights.at(b"anna"), Rights::READ);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathRights {
    /// Long prefixes first. The empty prefix covers everything.
    rules: Vec<(Box<[u8]>, Rights)>,
}

impl PathRights {
    /// The same rights for all keys.
    pub fn everywhere(rights: Rights) -> PathRights {
        PathRights {
            rules: vec![(Box::default(), rights)],
        }
    }

    /// Rights at one decoded key, and beneath it, except for the index of a site there.
    pub(crate) fn only_at(key: &[u8], rights: Rights, at_index: Rights) -> PathRights {
        PathRights {
            rules: vec![(index_of(key).into(), at_index), (key.into(), rights)],
        }
    }

    /// Sets the rights of a prefix. `prefix` begins with a slash and is plain text, without
    /// percent-encoding; a slash at its end has no meaning. An error is one line that says what is
    /// wrong with it.
    pub fn set(&mut self, prefix: &str, rights: Rights) -> Result<(), String> {
        let wrong = || format!("'{}': write a path such as /photos", prefix.escape_debug());
        let path = key_of(prefix).ok_or_else(wrong)?;
        self.rules.retain(|(known, _)| **known != *path);
        self.rules.push((path.into(), rights));
        self.rules
            .sort_by_key(|(prefix, _)| usize::MAX - prefix.len());
        Ok(())
    }

    /// Adds rights to those of the prefix `/`.
    pub fn add_everywhere(&mut self, rights: Rights) {
        match self
            .rules
            .last_mut()
            .filter(|(prefix, _)| prefix.is_empty())
        {
            Some((_, present)) => *present = present.union(rights),
            None => self.rules.push((Box::default(), rights)),
        }
    }

    /// Whether there is a rule for this prefix, in the form of [`PathRights::set`].
    pub fn has_rule(&self, prefix: &str) -> bool {
        let path = key_of(prefix);
        self.rules.iter().any(|(known, _)| path == Some(known))
    }

    /// The rights at a key or a folder, which is decoded and has no slash at its ends. An empty key
    /// is the top folder.
    pub fn at(&self, key: &[u8]) -> Rights {
        let covers = |prefix: &[u8]| match key.strip_prefix(prefix) {
            Some(rest) => prefix.is_empty() || matches!(rest, [] | [b'/', ..]),
            None => false,
        };
        let rule = self.rules.iter().find(|(prefix, _)| covers(prefix));
        rule.map_or(Rights::NONE, |(_, rights)| *rights)
    }

    /// The rights that hold at a folder and at every key beneath it.
    pub(crate) fn everywhere_beneath(&self, folder: &[u8]) -> Rights {
        let is_beneath = |prefix: &[u8]| {
            let rest = prefix.strip_prefix(folder);
            rest.is_some_and(|rest| folder.is_empty() || matches!(rest, [] | [b'/', ..]))
        };
        let rules = self.rules.iter().filter(|(prefix, _)| is_beneath(prefix));
        let rights = rules.map(|(_, rights)| *rights);
        rights.fold(self.at(folder), Rights::intersection)
    }

    /// All rights of all rules together.
    pub fn any(&self) -> Rights {
        let all = self.rules.iter().map(|(_, rights)| *rights);
        all.fold(Rights::NONE, Rights::union)
    }

    /// The rules as text, short prefixes first.
    pub fn rules(&self) -> impl Iterator<Item = (String, Rights)> {
        let shown = |prefix: &[u8]| format!("/{}", String::from_utf8_lossy(prefix));
        self.rules
            .iter()
            .rev()
            .map(move |(prefix, rights)| (shown(prefix), *rights))
    }
}

/// The key of a prefix in the form of [`PathRights::set`]. Empty: `/`.
fn key_of(prefix: &str) -> Option<&[u8]> {
    let path = prefix.strip_prefix('/')?;
    if path.is_empty() {
        return Some(b"");
    }
    let path = path.strip_suffix('/').unwrap_or(path).as_bytes();
    Key::parse(path).is_ok().then_some(path)
}

/// The user of a request, and its rights. [`Access`](crate::Access) attaches it to the
/// request ([`Request::extension`](onrush::Request::extension)), so that handlers can check other
/// keys than that of the request.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) name: Option<String>,
    pub(crate) rights: PathRights,
    /// Whether there are users at all, so that an anonymous client may log in.
    pub(crate) can_log_in: bool,
    /// `None`: it does not change.
    pub(crate) origin: Option<Arc<dyn Origin>>,
}

/// Where an identity is from. The users may be replaced while a request lasts.
pub(crate) trait Origin: fmt::Debug + Send + Sync {
    /// Whether the users are those who gave it.
    fn is_current(&self) -> bool;

    /// The client among the users of this moment. `None`: it is none of them any more.
    fn now(&self) -> Option<Identity>;
}

/// Wherever they are from.
impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        let of = |identity: &Identity| (identity.name.clone(), identity.can_log_in);
        of(self) == of(other) && self.rights == other.rights
    }
}

impl Eq for Identity {}

impl Identity {
    /// Whether the users are still those who gave this identity.
    pub(crate) fn is_current(&self) -> bool {
        let origin = self.origin.as_ref();
        origin.is_none_or(|origin| origin.is_current())
    }

    /// The client among the users of this moment. `None`: it is none of them any more.
    pub(crate) fn now(&self) -> Option<Cow<'_, Identity>> {
        match &self.origin {
            Some(origin) if !origin.is_current() => origin.now().map(Cow::Owned),
            _ => Some(Cow::Borrowed(self)),
        }
    }

    /// The name of the user; `None` for an anonymous client.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The rights at a key; see [`PathRights::at`].
    pub fn rights_at(&self, key: &[u8]) -> Rights {
        self.rights.at(key)
    }

    /// The rights that hold at a folder and at every key beneath it.
    pub(crate) fn rights_everywhere_beneath(&self, folder: &[u8]) -> Rights {
        self.rights.everywhere_beneath(folder)
    }

    /// The rights at the object that a site serves at the path of this folder, which may have a
    /// rule of its own.
    pub(crate) fn rights_at_index(&self, folder: &[u8]) -> Rights {
        self.rights.at(&index_of(folder))
    }
}

/// The key of the index of a folder.
pub(crate) fn index_of(folder: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
    [folder, slash, INDEX.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(rules: &[(&str, &str)]) -> PathRights {
        let mut rights = PathRights::default();
        for (prefix, text) in rules {
            rights.set(prefix, text.parse().unwrap()).unwrap();
        }
        rights
    }

    #[test]
    fn the_longest_prefix_counts_and_segments_are_whole() {
        type Rules<'r> = &'r [(&'r str, &'r str)];
        let table: [(Rules<'_>, &str, &str); 17] = [
            (&[], "", "none"),
            (&[], "a", "none"),
            (&[("/", "read")], "", "read"),
            (&[("/", "read")], "a/b", "read"),
            (&[("/a", "read")], "", "none"),
            (&[("/a", "read")], "a", "read"),
            (&[("/a/", "read")], "a", "read"),
            (&[("/a", "read")], "a/b/c", "read"),
            (&[("/a", "read")], "ab", "none"),
            (&[("/a", "read")], "A", "none"),
            (&[("/a", "read")], "b/a", "none"),
            (&[("/a/b", "read")], "a", "none"),
            (&[("/", "all"), ("/a", "none")], "a/b", "none"),
            (
                &[("/a", "none"), ("/", "all")],
                "b",
                "read,list,write,delete",
            ),
            (
                &[("/a", "read"), ("/a/b", "list"), ("/a/b/c", "all")],
                "a/b/d",
                "list",
            ),
            (&[("/a", "read"), ("/a/", "list")], "a", "list"),
            (&[("/a%2fb", "read")], "a/b", "none"),
        ];
        for (rules, key, expected) in table {
            let found = rights(rules).at(key.as_bytes()).to_string();
            assert_eq!(found, expected, "{rules:?} at {key:?}");
        }
    }

    #[test]
    fn rights_beneath_a_folder_are_those_of_all_rules() {
        let rules = [
            ("/", "all"),
            ("/a", "read,create"),
            ("/a/b", "read"),
            ("/ab", "none"),
        ];
        let rights = rights(&rules);
        for (folder, expected) in [("a", "read"), ("a/b", "read"), ("ab", "none"), ("", "none")] {
            let found = rights.everywhere_beneath(folder.as_bytes()).to_string();
            assert_eq!(found, expected, "{folder}");
        }
        assert_eq!(rights.everywhere_beneath(b"c"), Rights::ALL);
    }

    #[test]
    fn methods_need_rights() {
        use Rights as R;
        for (method, object, folder) in [
            ("GET", R::READ, R::LIST),
            ("HEAD", R::READ, R::LIST),
            ("PUT", R::CREATE, R::CREATE),
            ("DELETE", R::DELETE, R::DELETE),
            ("OPTIONS", R::NONE, R::NONE),
            ("POST", R::CREATE, R::CREATE),
            ("PATCH", R::ALL, R::ALL),
            ("get", R::ALL, R::ALL),
            ("COPY", R::READ, R::READ),
            ("MOVE", R::READ.union(R::DELETE), R::READ.union(R::DELETE)),
            ("PROPFIND", R::READ, R::LIST),
            ("PROPPATCH", R::WRITE, R::WRITE),
            ("MKCOL", R::CREATE, R::CREATE),
            ("LOCK", R::CREATE, R::CREATE),
            ("UNLOCK", R::CREATE, R::CREATE),
            ("SEARCH", R::ALL, R::ALL),
            ("", R::ALL, R::ALL),
        ] {
            assert_eq!(R::needed(method, false), object, "{method}");
            assert_eq!(R::needed(method, true), folder, "{method}");
        }
    }

    #[test]
    fn rights_have_one_text() {
        for (text, shown) in [
            ("all", "read,list,write,delete"),
            ("create,write", "write"),
            ("list, read", "read,list"),
            ("create", "create"),
            ("none", "none"),
        ] {
            let rights: Rights = text.parse().unwrap();
            assert_eq!(rights.to_string(), shown);
            assert_eq!(shown.parse(), Ok(rights));
        }
        for wrong in ["", "reads", "read,", "READ", "all,read"] {
            assert!(wrong.parse::<Rights>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn prefixes_are_keys() {
        for wrong in ["", "a", "//", "/a//b", "/../a", "/a/./b", "/a\0"] {
            let mut rights = PathRights::default();
            assert!(rights.set(wrong, Rights::ALL).is_err(), "{wrong:?}");
        }
        let mut both = rights(&[("/a", "list")]);
        both.add_everywhere(Rights::READ);
        both.add_everywhere(Rights::CREATE);
        let rules: Vec<_> = both.rules().map(|(at, of)| format!("{at} {of}")).collect();
        assert_eq!(rules, ["/ read,create", "/a list"]);
        assert_eq!(both.any().to_string(), "read,list,create");
    }
}
