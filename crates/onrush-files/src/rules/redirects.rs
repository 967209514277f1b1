//! The redirects of a site: lines `FROM TO [STATUS]`.
//!
//! `TO` is a path, or a URL of `http` or `https`. `:splat` in it is what `*` in `FROM` stands for.
//! A request cannot choose the host that it is redirected to: `:splat` stands in the path of `TO`,
//! and a path never begins with two slashes. Redirects that lead back to themselves are refused.

use super::file::{Line, lines};
use super::patterns::{Pattern, Patterns};
use crate::files::path::{encode, encode_invalid};

const SPLAT: &str = ":splat";

/// The longest chain of redirects. Browsers follow 20.
const STEPS_MAX: u32 = 20;

/// What `:splat` is taken to be while circles are searched.
const EXAMPLE: &[u8] = b"example";

/// The status without one in the line.
const MOVED_PERMANENTLY: u16 = 301;

/// A redirect.
#[derive(Debug)]
struct Redirect {
    /// Percent-encoded.
    to: String,
    status: u16,
    line: usize,
}

/// All redirects. The first one that matches a path counts.
#[derive(Debug, Default)]
pub(super) struct Redirects(Patterns<Redirect>);

impl Redirects {
    /// The paths of rules that are not for all paths; see `Pattern`.
    pub(super) fn narrow_paths(&self) -> impl Iterator<Item = Vec<u8>> {
        self.0.narrow_paths()
    }

    /// Parses a file. An error is one line, with the number of the line.
    pub(super) fn parse(text: &str) -> Result<Redirects, String> {
        let mut redirects = Redirects::default();
        for line in lines(text) {
            let added = redirects.add(&line);
            added.map_err(|error| line.error(&error))?;
        }
        redirects.check_circles()?;
        Ok(redirects)
    }

    fn add(&mut self, line: &Line<'_>) -> Result<(), String> {
        let mut words = line.text.split_ascii_whitespace();
        let (Some(from), Some(to), status, None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("write FROM TO, or FROM TO STATUS".to_owned());
        };
        let from = Pattern::parse(from)?;
        let status = match status {
            None => MOVED_PERMANENTLY,
            Some("301") => 301,
            Some("302") => 302,
            Some("307") => 307,
            Some("308") => 308,
            Some(other) => return Err(format!("{other}: a status is 301, 302, 307 or 308")),
        };
        check_target(to, from.has_wildcard())?;
        let mut encoded = String::new();
        encode_invalid(to, &mut encoded);
        let redirect = Redirect {
            to: encoded,
            status,
            line: line.number,
        };
        self.0.add(from, redirect)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The status and the `Location` for a decoded path. `query`: of the request, which is kept
    /// unless the target has one.
    pub(super) fn find(&self, path: &[u8], query: Option<&str>) -> Option<(u16, String)> {
        let found = self.0.find(path);
        let (position, splat) = *found.first()?;
        let redirect = self.0.values().get(position)?;
        let mut location = redirect.location(splat);
        if let Some(query) = query.filter(|_| !location.contains('?')) {
            let fragment = location.find('#').map(|at| location.split_off(at));
            location.push('?');
            encode_invalid(query, &mut location);
            location.push_str(fragment.as_deref().unwrap_or_default());
        }
        Some((redirect.status, location))
    }

    /// Refuses redirects between paths that lead into a circle, or to very many others.
    fn check_circles(&self) -> Result<(), String> {
        for first in self.0.values() {
            let mut location = first.location(EXAMPLE);
            let mut steps = 1;
            while let Some((_, next)) = self.find(&path_of(&location), None) {
                steps += 1;
                if steps > STEPS_MAX {
                    let text = "this redirect leads into a circle, or to more than 20 others";
                    return Err(format!("line {}: {text}", first.line));
                }
                location = next;
            }
        }
        Ok(())
    }
}

/// The decoded path of a location. That of a URL begins with no slash, so no redirect matches it.
fn path_of(location: &str) -> Vec<u8> {
    let path = location.split(['?', '#']).next().unwrap_or_default();
    percent_encoding::percent_decode_str(path).collect()
}

impl Redirect {
    fn location(&self, splat: &[u8]) -> String {
        let mut encoded = String::new();
        encode(splat, &mut encoded);
        let location = self.to.replace(SPLAT, &encoded);
        match location.starts_with('/') {
            // A browser reads `//host` as another host.
            true => format!("/{}", location.trim_start_matches('/')),
            false => location,
        }
    }
}

/// Checks the target of a redirect.
fn check_target(to: &str, has_wildcard: bool) -> Result<(), String> {
    let fixed = to.split(SPLAT).next().unwrap_or_default();
    if fixed.len() < to.len() && !has_wildcard {
        return Err(format!("{SPLAT} needs a * in the path that is redirected"));
    }
    if to.chars().any(char::is_control) {
        return Err("the target has a control character".to_owned());
    }
    let scheme = ["http://", "https://"]
        .into_iter()
        .find(|scheme| to.starts_with(scheme));
    let is_path = to.starts_with('/') && !to.starts_with("//") && !to.starts_with("/\\");
    match scheme {
        None if is_path => Ok(()),
        None => Err(format!(
            "{to}: a target is a path that begins with one slash, or a URL of http or https"
        )),
        Some(scheme) => {
            let host = to[scheme.len()..].split(['/', '?', '#']).next();
            let host = host.unwrap_or_default();
            let is_host = !host.is_empty() && !host.contains(['@', '\\']);
            // A host that ends with `:splat` would be chosen by the request.
            match is_host && !host.contains(SPLAT) {
                true => Ok(()),
                false => Err(format!("{to}: the target needs a host that is not {SPLAT}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, path: &str, query: Option<&str>) -> Option<(u16, String)> {
        let redirects = Redirects::parse(text).expect("redirects");
        redirects.find(path.as_bytes(), query)
    }

    #[test]
    fn the_first_match_counts() {
        let text = "# old names\n/a /b\n/blog/* /news/:splat 308 # moved\n/blog/x /y 302\n\
            /ext/* https://a.example/p/:splat?from=old#top 307\n/u /\u{fc} 302\n";
        let to = |path: &str| find(text, path, None);
        assert_eq!(to("/a"), Some((301, "/b".to_owned())));
        assert_eq!(to("/blog/x"), Some((308, "/news/x".to_owned())));
        assert_eq!(to("/blog/"), Some((308, "/news/".to_owned())));
        assert_eq!(
            to("/blog/a b/\u{e4}"),
            Some((308, "/news/a%20b/%C3%A4".to_owned()))
        );
        let url = "https://a.example/p/x?from=old#top".to_owned();
        assert_eq!(to("/ext/x"), Some((307, url.clone())));
        assert_eq!(find(text, "/ext/x", Some("q=1")), Some((307, url)));
        assert_eq!(
            find(text, "/a", Some("q=<1>")),
            Some((301, "/b?q=%3C1%3E".to_owned()))
        );
        assert_eq!(
            find("/a /b#c", "/a", Some("q")),
            Some((301, "/b?q#c".to_owned()))
        );
        assert_eq!(to("/u"), Some((302, "/%C3%BC".to_owned())));
        for path in ["/", "/b", "/blog", "/aa"] {
            assert_eq!(to(path), None, "{path}");
        }
    }

    #[test]
    fn a_request_cannot_choose_the_host() {
        let to = |text: &str, path: &str| find(text, path, None).map(|(_, location)| location);
        let evil = "/old//evil.example";
        assert_eq!(to("/old* /:splat", evil).as_deref(), Some("/evil.example"));
        assert_eq!(
            to("/old* /new/:splat", "/old/x").as_deref(),
            Some("/new//x")
        );
    }

    #[test]
    fn lines_that_are_wrong_are_named() {
        for (text, expected) in [
            ("/a", "line 1: write FROM TO"),
            ("/a /b 301 x", "line 1: write FROM TO"),
            ("\n# x\n/a /b 200", "line 3: 200: a status is"),
            ("a /b", "line 1: \"a\": a path begins with a slash"),
            ("/a //evil.example", "line 1: //evil.example: a target"),
            ("/a /\\evil.example", "line 1: /\\evil.example: a target"),
            ("/a javascript:x", "line 1: javascript:x: a target"),
            ("/a /:splat", "line 1: :splat needs a *"),
            ("/a* :splat", "line 1: :splat: a target"),
            (
                "/* https://:splat",
                "line 1: https://:splat: the target needs a host",
            ),
            (
                "/* https://a.example:splat",
                "line 1: https://a.example:splat: the target",
            ),
            (
                "/a https://u@b.example/",
                "line 1: https://u@b.example/: the target",
            ),
            ("/a /a", "line 1: this redirect leads"),
            ("/x /y\n/* /en/:splat", "line 1: this redirect leads"),
            (
                "/en/* /:splat\n/home /en/home",
                "line 2: this redirect leads",
            ),
            (
                "/p* /q:splat\n/q/* /p/:splat",
                "line 2: this redirect leads",
            ),
            ("/a /b\n/b /c\n/c /a?x=1", "line 1: this redirect leads"),
            ("/a /%62\n/b /a", "line 1: this redirect leads"),
        ] {
            let error = Redirects::parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'));
        }
        for good in ["/a /b\n/b /c\n/c /d", "/a/* /b/:splat\n/b /a", ""] {
            assert!(Redirects::parse(good).is_ok(), "{good}");
        }
    }
}
