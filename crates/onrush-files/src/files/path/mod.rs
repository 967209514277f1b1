//! The conversion between request paths and keys. All percent-decoding and percent-encoding of
//! paths takes place here, and a path is decoded once.
//!
//! | in a path | result |
//! | --- | --- |
//! | `%` without two hexadecimal digits, `%00`, `%2F` | 400: no name can contain it |
//! | `@scope%2Fname` in a GET or HEAD | redirected to `@scope/name`: see [`scope_redirect`] |
//! | `.` and `..`, encoded or not | removed (RFC 3986 §5.2.4); above the folder: 400 |
//! | an empty segment | removed, after `.` and `..` |
//! | a backslash, bytes that are not UTF-8 | an ordinary byte of a name |
//! | a segment that begins with a dot | hidden, unless the options permit it |
//! | `.well-known` first | of a site: not hidden for reads |
//! | `.onrush` first, in upper or lower case | always 404 for reads, 403 for writes |
//! | `-` first | the same, if the admin pages share the address |
//! | the names of `assets` | the same, except that the page's style and script are served there |
//! | more segments than `FilesOptions::depth_max` | 400 for PUT; reads work |
//!
//! Dot segments are removed before empty segments. Clients that normalize a URL before they send it
//! (RFC 3986 §6.2.2.3, the URL standard) do not remove empty segments: they send `a//../b` as
//! `a/b`, so it must have the same result here. The result depends only on the decoded path, so all
//! spellings of a path name one object, for every method.

pub(super) mod artifacts;
pub(super) mod assets;
pub(super) mod location;
pub(super) mod shown;

use crate::client_address::{is_forwarded, is_https};
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::options::FilesOptions;
use crate::rights::index_of;
use onrush::{Request, Response};
use onrush_store::{Key, StoreError};
use std::borrow::Cow;

/// The route parameter that holds the key.
const PARAMETER: &str = "key";

const NO_SLASH: HttpError = HttpError::new(400, "the path does not begin with a slash");
const ENCODED_SLASH: HttpError = HttpError::new(400, "a name cannot contain a slash");
pub(in crate::files) const OUTSIDE: HttpError =
    HttpError::new(400, "the path leads out of the folder that is served");

/// The two parts of a path, as sent: the mount point of the folder, and the path within the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) struct Split<'r> {
    /// Ends with a slash.
    pub(in crate::files) mount: &'r str,
    pub(in crate::files) subpath: &'r str,
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) enum Target {
    /// `a/b`
    Object(Key),
    /// `a/b/`; `None` is the top folder.
    Folder(Option<Key>),
}

/// Splits a request's path at the parameter of its route. Without the parameter, the folder is
/// mounted at `/`.
pub(in crate::files) fn split(request: &Request) -> Result<Split<'_>, HttpError> {
    let path = request.path();
    let subpath = match request.param(PARAMETER) {
        Some(subpath) => subpath,
        None => path.strip_prefix('/').ok_or(NO_SLASH)?,
    };
    let mount = &path[..path.len() - subpath.len()];
    Ok(Split { mount, subpath })
}

/// What a path of this server names, without a check whether there can be such an object. Access
/// control and the handler decide by the same value: a path that has to be decoded is decoded once
/// and attached to its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedPath<'p> {
    /// Decoded, and without a slash at its ends. Empty: the top folder of the server.
    pub(crate) whole: Cow<'p, [u8]>,
    pub(crate) is_folder: bool,
    /// How many segments were left when a `..` had removed the most.
    depth_min: usize,
}

impl<'p> ResolvedPath<'p> {
    /// Decodes a whole path and removes dot segments and empty segments. Paths that need neither
    /// are not copied. Fails with 400.
    pub(crate) fn parse(path: &'p str) -> Result<ResolvedPath<'p>, HttpError> {
        let path = path.strip_prefix('/').ok_or(NO_SLASH)?;
        let (mut whole, mut depth_min) = (decode(path)?, usize::MAX);
        let may_be_removed = |byte: u8| matches!(byte, b'/' | b'.');
        let is_found = whole.first().is_some_and(|&first| may_be_removed(first))
            || whole
                .windows(2)
                .any(|two| two[0] == b'/' && may_be_removed(two[1]));
        if is_found && let Some(normalized) = remove_segments(&whole, &mut depth_min)? {
            whole = Cow::Owned(normalized);
        }
        let is_folder = whole.is_empty() || whole.ends_with(b"/");
        if whole.ends_with(b"/") {
            match &mut whole {
                Cow::Borrowed(whole) => *whole = &whole[..whole.len() - 1],
                Cow::Owned(whole) => whole.truncate(whole.len() - 1),
            }
        }
        Ok(ResolvedPath {
            whole,
            is_folder,
            depth_min,
        })
    }

    /// The path of a request.
    pub(crate) fn of(request: &'p Request) -> Result<ResolvedPath<'p>, HttpError> {
        match request.extension::<ResolvedPath<'static>>() {
            Some(attached) => Ok(ResolvedPath {
                whole: Cow::Borrowed(&attached.whole),
                ..*attached
            }),
            None => ResolvedPath::parse(request.path()),
        }
    }

    /// The value to attach to the request. `None`: it is attached, or nothing had to be decoded.
    pub(crate) fn into_decoded(self) -> Option<ResolvedPath<'static>> {
        match self.whole {
            Cow::Borrowed(_) => None,
            Cow::Owned(whole) => Some(ResolvedPath {
                whole: Cow::Owned(whole),
                is_folder: self.is_folder,
                depth_min: self.depth_min,
            }),
        }
    }

    /// The object or folder that the path names in the folder that is mounted at `mount`.
    /// `operation` determines how a name that no object can have is refused.
    pub(in crate::files) fn target(
        &self,
        mount: &str,
        operation: Operation,
    ) -> Result<Target, HttpError> {
        let mount = match mount {
            "/" => Cow::Borrowed(&b""[..]),
            // Not above the folder, even if the path leads back into it.
            _ if self.depth_min.saturating_add(1) < mount.matches('/').count() => {
                return Err(OUTSIDE);
            }
            mount => ResolvedPath::parse(mount)?.whole,
        };
        let key = match self.whole.strip_prefix(&*mount).ok_or(OUTSIDE)? {
            key if mount.is_empty() => key,
            [] => &[],
            key => key.strip_prefix(b"/").ok_or(OUTSIDE)?,
        };
        let parsed = match key {
            [] => return Ok(Target::Folder(None)),
            key => Key::parse(key).map_err(|error| refuse(error, key, operation))?,
        };
        Ok(match self.is_folder {
            true => Target::Folder(Some(parsed)),
            false => Target::Object(parsed),
        })
    }
}

/// The object or folder that a request names. `operation` determines how a name that no object can
/// have is refused.
pub(in crate::files) fn target(
    request: &Request,
    operation: Operation,
) -> Result<Target, HttpError> {
    ResolvedPath::of(request)?.target(split(request)?.mount, operation)
}

/// The decoded path of the whole server of an object in the folder in which a request names
/// something.
pub(in crate::files) fn whole(request: &Request, key: &[u8]) -> Result<Vec<u8>, HttpError> {
    let mount = ResolvedPath::parse(split(request)?.mount)?.whole;
    Ok(beneath(&mount, key))
}

/// The decoded path of something in a folder; an empty one is the top folder.
pub(in crate::files) fn beneath(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match (folder, name) {
        ([], name) => name.to_vec(),
        (folder, []) => folder.to_vec(),
        (folder, name) => [folder, b"/", name].concat(),
    }
}

/// The `index.html` of a folder; `None` if its name is too long.
pub(in crate::files) fn index(folder: Option<&Key>) -> Option<Key> {
    Key::parse(&index_of(folder.map_or(b"", Key::as_bytes))).ok()
}

/// Refuses an invalid path with 400, for methods that need no key.
pub(in crate::files) fn check(request: &Request) -> Result<(), HttpError> {
    match target(request, Operation::Read) {
        Err(failure) if failure.status == 400 => Err(failure),
        _ => Ok(()),
    }
}

/// The response to a path that is not a key. For a write it states whether a name or the path is
/// too long.
#[cold]
fn refuse(error: StoreError, path: &[u8], operation: Operation) -> HttpError {
    let is_long = |name: &[u8]| name.len() > Key::SEGMENT_BYTES_MAX;
    match operation {
        Operation::Write if path.split(|&byte| byte == b'/').any(is_long) => {
            HttpError::new(400, "a name of the path is longer than 255 bytes")
        }
        Operation::Write if path.len() > Key::BYTES_MAX => {
            HttpError::new(400, "the path is longer than 4095 bytes")
        }
        _ => HttpError::from_store(error, operation),
    }
}

/// Removes `.` and `..` segments as RFC 3986 §5.2.4 does, then empty segments; `None` if there are
/// none. A path that ends with one of them names a folder, and ends with a slash in the result.
/// Fails with 400 if a `..` leads above the root, where the RFC would ignore it. Lowers `depth_min`
/// to the number of segments that a `..` has left.
fn remove_segments(path: &[u8], depth_min: &mut usize) -> Result<Option<Vec<u8>>, HttpError> {
    let mut segments = Vec::new();
    let mut is_folder = false;
    for segment in path.split(|&byte| byte == b'/') {
        is_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"." => {}
            b".." if segments.pop().is_none() => {
                return Err(HttpError::new(400, "the path leads above the top folder"));
            }
            b".." => *depth_min = segments.len().min(*depth_min),
            segment => segments.push(segment),
        }
    }
    segments.retain(|segment| !segment.is_empty());
    let mut normalized = segments.join(&b'/');
    if is_folder && !normalized.is_empty() {
        normalized.push(b'/');
    }
    Ok((normalized != path).then_some(normalized))
}

impl Target {
    /// Refuses a path with more segments than a `PUT` may have.
    pub(in crate::files) fn check_depth(self, options: &FilesOptions) -> Result<Target, HttpError> {
        match &self {
            // A segment with its slash takes at least two bytes, so short keys need no count.
            Target::Object(key) | Target::Folder(Some(key))
                if key.as_bytes().len() / 2 + 1 > options.depth_max
                    && key.segments().count() > options.depth_max =>
            {
                Err(HttpError::TOO_DEEP)
            }
            _ => Ok(self),
        }
    }

    /// Refuses hidden names, the names of the store, and the names of the admin pages.
    pub(in crate::files) fn check_visible(
        self,
        options: &FilesOptions,
        operation: Operation,
    ) -> Result<Target, HttpError> {
        let (Target::Object(key) | Target::Folder(Some(key))) = &self else {
            return Ok(self);
        };
        let is_reserved = match options.reserve_admin_paths {
            true => is_admin_key(key),
            false => assets::is_name(key.as_bytes()),
        };
        let is_hidden = key.hidden()
            && key.segments().any(|segment| options.hides(segment))
            && !(options.site && operation == Operation::Read && is_well_known(key));
        if !key.reserved() && !is_reserved && !is_hidden {
            return Ok(self);
        }
        Err(match operation {
            Operation::Read => HttpError::NOT_FOUND,
            Operation::Write => HttpError::NOT_WRITABLE,
        })
    }
}

/// Whether a key is where `onrush::Admin` is served: at or under the name `-` at the top.
pub(in crate::files) fn is_admin_key(key: &Key) -> bool {
    let mut segments = key.as_bytes().split(|&byte| byte == b'/');
    segments.next() == Some(b"-")
}

/// Whether a key is in the folder of a site that programs know (RFC 8615), without other hidden
/// names. It is not written: its objects can prove that their author controls the host.
fn is_well_known(key: &Key) -> bool {
    let mut segments = key.segments();
    segments.next() == Some(b".well-known") && segments.all(|segment| segment[0] != b'.')
}

/// The response to a GET or HEAD that `failure` refuses because its path has an encoded slash, if
/// that follows the scope of a package: npm asks for `/@scope%2Fname`. It is redirected to the path
/// with a slash.
///
/// The slash is not decoded here, because a proxy in front that decides by the path of a request
/// may not decode it. So the client asks again, with the only spelling that every program on the
/// way reads alike, and all of them decide about that. The redirect depends on the path only.
pub(crate) fn scope_redirect(request: &Request, failure: HttpError) -> Option<Response> {
    if failure != ENCODED_SLASH || !matches!(request.method(), "GET" | "HEAD") {
        return None;
    }
    let plain = decode_scopes(request.path())?;
    let ResolvedPath {
        whole, is_folder, ..
    } = ResolvedPath::parse(&plain).ok()?;
    let mut location = href("/", &whole);
    if is_folder {
        location.push('/');
    }
    if let Some(query) = request.query() {
        location.push('?');
        encode_invalid(query, &mut location);
    }
    let response = Response::new(301).with_header("Location", location);
    Some(response.with_header("Cache-Control", "no-cache"))
}

/// A path with a slash for `%2F` in each segment `@scope%2Fname`. `None` if there is another `%2F`.
fn decode_scopes(path: &str) -> Option<String> {
    let is_encoded = |bytes: &[u8]| bytes.eq_ignore_ascii_case(b"%2F");
    let find = |text: &str| text.as_bytes().windows(3).position(is_encoded);
    let segments = path.split('/').map(|segment| {
        let Some(at) = find(segment) else {
            return Some(segment.to_owned());
        };
        let (scope, name) = (&segment[..at], &segment[at + 3..]);
        let is_scope = scope.len() > 1 && scope.starts_with('@');
        let is_name = !name.is_empty() && find(name).is_none();
        (is_scope && is_name).then(|| [scope, name].join("/"))
    });
    Some(segments.collect::<Option<Vec<_>>>()?.join("/"))
}

/// Decodes percent-encoding once. Borrows if there is none.
fn decode(text: &str) -> Result<Cow<'_, [u8]>, HttpError> {
    if !text.as_bytes().contains(&b'%') {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let bytes = percent_decode(text, false)?;
    match bytes.contains(&0) {
        false => Ok(Cow::Owned(bytes)),
        true => Err(HttpError::new(400, "a name cannot contain a zero byte")),
    }
}

/// Decodes a query value, where `+` is a space and `%2F` is a slash.
pub(crate) fn decode_query(text: &str) -> Result<Vec<u8>, HttpError> {
    percent_decode(text, true)
}

fn percent_decode(text: &str, query: bool) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'%' => {
                let byte = match after {
                    [high, low, ..] => hex(*high).zip(hex(*low)).map(|(h, l)| h << 4 | l),
                    _ => None,
                };
                rest = after.get(2..).unwrap_or_default();
                let malformed =
                    HttpError::new(400, "a percent sign without two hexadecimal digits");
                match byte.ok_or(malformed)? {
                    b'/' if !query => return Err(ENCODED_SLASH),
                    byte => byte,
                }
            }
            b'+' if query => b' ',
            byte => byte,
        });
    }
    Ok(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// Appends `bytes` percent-encoded, except unreserved characters (RFC 3986 §2.3) and `/`. The
/// result needs no further escaping in a field value, in HTML or in JSON.
pub(crate) fn encode(bytes: &[u8], out: &mut String) {
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            byte => push_escape(byte, out),
        }
    }
}

/// Appends a part of a request target. It keeps existing escapes and encodes only characters that a
/// URI cannot contain: browsers send `"`, `<` and others unencoded.
pub(crate) fn encode_invalid(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b'\'' => {
                push_escape(byte, out);
            }
            b'!'..=b'~' => out.push(char::from(byte)),
            byte => push_escape(byte, out),
        }
    }
}

fn push_escape(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

/// The encoded path of `key` below `mount`. It begins with exactly one slash, so that no client
/// reads it as `//host/`.
pub(in crate::files) fn href(mount: &str, key: &[u8]) -> String {
    let mount = mount.trim_start_matches(['/', '\\']);
    let mut out = String::with_capacity(1 + mount.len() + key.len() + 8);
    out.push('/');
    encode_invalid(mount, &mut out);
    encode(key, &mut out);
    out
}

/// The encoded path of a folder: [`href`] with a trailing slash, and the query of the client.
pub(in crate::files) fn folder_href(mount: &str, key: &[u8], query: Option<&str>) -> String {
    let mut out = href(mount, key);
    out.push('/');
    if let Some(query) = query {
        out.push('?');
        encode_invalid(query, &mut out);
    }
    out
}

/// The absolute URL of a path with a query. It stays relative if the URL that the client uses is
/// not known: behind a proxy that is not trusted, or without `Host`.
pub(in crate::files) fn absolute_url(request: &Request, path: &str) -> String {
    let by_proxy = ["x-forwarded-proto", "x-forwarded-for", "forwarded", "via"];
    let is_direct = !by_proxy.iter().any(|name| request.header(name).is_some());
    let scheme = if is_https(request) { "https" } else { "http" };
    match request.host() {
        Some(host) if is_direct || is_forwarded(request) => format!("{scheme}://{host}{path}"),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(path: &str, mount: &str, operation: Operation) -> Result<Target, u16> {
        let target = ResolvedPath::parse(path).and_then(|path| path.target(mount, operation));
        target.map_err(|failure| failure.status)
    }

    fn object(subpath: &str) -> Result<Vec<u8>, u16> {
        match target(&format!("/{subpath}"), "/", Operation::Read)? {
            Target::Object(key) => Ok(key.as_bytes().to_vec()),
            other => panic!("{subpath}: {other:?}"),
        }
    }

    #[test]
    fn paths_are_decoded_once_or_refused() {
        assert_eq!(object("a/b"), Ok(b"a/b".to_vec()));
        assert_eq!(object("a%20b%C3%A4"), Ok("a bä".into()));
        assert_eq!(object("%ff"), Ok(vec![0xff]));
        assert_eq!(object("%252e%252e"), Ok(b"%2e%2e".to_vec()));
        assert_eq!(object("a\\..\\b"), Ok(b"a\\..\\b".to_vec()));
        assert_eq!(object("%c0%ae%c0%ae"), Ok(vec![0xc0, 0xae, 0xc0, 0xae]));
        for bad in ["%", "%4", "%zz", "a%00b", "a%2fb", "..%2f..%2fetc"] {
            assert_eq!(object(bad), Err(400), "{bad}");
        }
        let long = format!("./{}", "x".repeat(256));
        assert_eq!(object(&long), Err(404));
    }

    #[test]
    fn dot_segments_and_empty_segments_are_removed() {
        let table: [(&str, Result<&str, u16>); 40] = [
            ("", Ok("/")),
            ("a", Ok("a")),
            ("a/", Ok("a/")),
            (".", Ok("/")),
            ("./", Ok("/")),
            ("/", Ok("/")),
            ("//", Ok("/")),
            ("./a", Ok("a")),
            ("/a", Ok("a")),
            ("///a", Ok("a")),
            ("a/.", Ok("a/")),
            ("a/./", Ok("a/")),
            ("a//", Ok("a/")),
            ("a/./b", Ok("a/b")),
            ("a//b", Ok("a/b")),
            ("a///b", Ok("a/b")),
            ("a/././b/.", Ok("a/b/")),
            ("a/..", Ok("/")),
            ("a/../", Ok("/")),
            ("a/../b", Ok("b")),
            ("a/b/..", Ok("a/")),
            ("a/b/../..", Ok("/")),
            ("a/b/../../c", Ok("c")),
            ("./x:y.txt", Ok("x:y.txt")),
            ("a/.../b", Ok("a/.../b")),
            ("..a/b..", Ok("..a/b..")),
            // The result of clients that normalize before they send: `..` removes one slash.
            ("a//../b", Ok("a/b")),
            ("//../b", Ok("b")),
            ("a/b//../../c", Ok("a/c")),
            ("..", Err(400)),
            ("../", Err(400)),
            ("../a", Err(400)),
            ("./..", Err(400)),
            ("a/../..", Err(400)),
            ("a/../../a", Err(400)),
            ("a/./../../b", Err(400)),
            ("a/b/../../../c/d/e", Err(400)),
            ("..%2fa", Err(400)),
            ("a%2f..", Err(400)),
            ("./%2e%2e/.%2E/x", Err(400)),
        ];
        for (path, expected) in table {
            let spellings = [
                path.to_owned(),
                path.replace('.', "%2e"),
                path.replace('.', "%2E"),
                path.replacen('.', "%2e", 1),
                path.replace("..", ".%2E"),
            ];
            for spelling in spellings {
                for (mount, operation) in [
                    ("/", Operation::Read),
                    ("/", Operation::Write),
                    ("/files/", Operation::Write),
                ] {
                    let found = target(&format!("{mount}{spelling}"), mount, operation);
                    let found = found.map(|target| match target {
                        Target::Object(key) => key.as_bytes().to_vec(),
                        Target::Folder(Some(key)) => [key.as_bytes(), b"/"].concat(),
                        Target::Folder(None) => b"/".to_vec(),
                    });
                    let expected = expected.map(|text| text.as_bytes().to_vec());
                    assert_eq!(found, expected, "{path} as {spelling} beneath {mount}");
                }
            }
        }
    }

    #[test]
    fn the_path_of_a_folder_has_no_slash_at_its_end() {
        assert_eq!(beneath(b"", b"a"), b"a");
        assert_eq!(beneath(b"a/b", b"c"), b"a/b/c");
        assert_eq!(beneath(b"a/b", b""), b"a/b");
        assert_eq!(beneath(b"", b""), b"");
    }

    #[test]
    fn only_a_slash_after_a_scope_is_decoded() {
        for (path, expected) in [
            ("/@scope%2fname", Some("/@scope/name")),
            ("/npm/@a%2Fb/c", Some("/npm/@a/b/c")),
            ("/@a%2fb/@c%2fd", Some("/@a/b/@c/d")),
            ("/@a%2f%2e%2e", Some("/@a/%2e%2e")), // Removed as in every path.
            ("/@a%252fb", Some("/@a%252fb")),
            ("/a%2fb", None),
            ("/%2fa", None),
            ("/@%2fa", None),
            ("/@a%2f", None),
            ("/@a%2fb%2fc", None),
            ("/@a%2f%2fb", None),
            ("/@a%2fb/..%2fc", None),
        ] {
            assert_eq!(decode_scopes(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn an_encoded_path_has_one_leading_slash() {
        assert_eq!(href("/", b"a b/\xff"), "/a%20b/%FF");
        assert_eq!(href("//", b"evil.com"), "/evil.com");
        assert_eq!(href("/\\/x\"/", b"y"), "/x%22/y");
        assert_eq!(href("/", b"\\evil"), "/%5Cevil");
        assert_eq!(
            folder_href("/m/", b"a", Some("x=\"1\"&y=%20")),
            "/m/a/?x=%221%22&y=%20"
        );
    }

    #[test]
    fn plus_and_encoded_slash_are_decoded_in_a_query() {
        assert_eq!(decode_query("a+b%2Fc"), Ok(b"a b/c".to_vec()));
        assert!(decode_query("%x").is_err());
    }
}
