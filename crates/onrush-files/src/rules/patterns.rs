//! Patterns of paths: `/about`, `/blog/*`, `/assets/*.css`.
//!
//! A pattern is compared with the whole decoded path, so all spellings of a path are equal. `*`
//! occurs at most once, and stands for any bytes, also for none and for slashes.

use std::collections::HashMap;

/// The maximum number of patterns with `*` in one file. Each is compared with each request.
const WILDCARDS_MAX: usize = 1000;

/// A pattern of paths, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// What comes before `*`, or the whole path.
    before: Vec<u8>,
    /// What comes after `*`, if there is one.
    after: Option<Vec<u8>>,
}

impl Pattern {
    /// Parses a pattern, which may be percent-encoded. An error is one line.
    pub(super) fn parse(text: &str) -> Result<Pattern, String> {
        if !text.starts_with('/') {
            return Err(format!("{text:?}: a path begins with a slash"));
        }
        let decode = |part: &str| {
            let decoded: Vec<u8> = percent_encoding::percent_decode_str(part).collect();
            let is_empty_segment = decoded.windows(2).any(|two| two == b"//");
            match decoded.contains(&0) || is_empty_segment {
                false => Ok(decoded),
                true => Err(format!("{text:?}: no path is like this")),
            }
        };
        match text.split_once('*') {
            None => Ok(Pattern {
                before: decode(text)?,
                after: None,
            }),
            Some((_, after)) if after.contains('*') => {
                Err(format!("{text:?}: a path has at most one *"))
            }
            Some((before, after)) => Ok(Pattern {
                before: decode(before)?,
                after: Some(decode(after)?),
            }),
        }
    }

    /// The path of the folder in which, and beneath which, the pattern compares names; or the whole
    /// path. Without a slash at its ends. `None`: it matches every path.
    fn narrow_path(&self) -> Option<&[u8]> {
        let path = self.before.strip_prefix(b"/").unwrap_or(&self.before);
        match &self.after {
            None => Some(path.strip_suffix(b"/").unwrap_or(path)),
            Some(after) if path.is_empty() && after.is_empty() => None,
            Some(_) => {
                let slash = path.iter().rposition(|&byte| byte == b'/');
                Some(&path[..slash.unwrap_or(0)])
            }
        }
    }

    pub(super) fn has_wildcard(&self) -> bool {
        self.after.is_some()
    }

    /// What `*` stands for, empty without one. `None`: the path does not match.
    fn matches<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        match &self.after {
            None => (path == self.before).then_some(&[]),
            Some(after) => path
                .strip_prefix(&self.before[..])?
                .strip_suffix(&after[..]),
        }
    }
}

/// Values by pattern, in the order of their file.
#[derive(Debug)]
pub(super) struct Patterns<T> {
    values: Vec<T>,
    /// The positions of values whose patterns are a whole path.
    exact: HashMap<Vec<u8>, Vec<usize>>,
    wildcards: Vec<(Pattern, usize)>,
}

impl<T> Default for Patterns<T> {
    fn default() -> Patterns<T> {
        Patterns {
            values: Vec::new(),
            exact: HashMap::new(),
            wildcards: Vec::new(),
        }
    }
}

impl<T> Patterns<T> {
    /// Adds a value. An error is one line.
    pub(super) fn add(&mut self, pattern: Pattern, value: T) -> Result<(), String> {
        let position = self.values.len();
        match pattern.has_wildcard() {
            false => self.exact.entry(pattern.before).or_default().push(position),
            true if self.wildcards.len() < WILDCARDS_MAX => {
                self.wildcards.push((pattern, position));
            }
            true => return Err(format!("more than {WILDCARDS_MAX} paths with *")),
        }
        self.values.push(value);
        Ok(())
    }

    /// See [`Pattern::narrow_path`].
    pub(super) fn narrow_paths(&self) -> impl Iterator<Item = Vec<u8>> {
        let exact = self.exact.keys().map(|path| Pattern {
            before: path.clone(),
            after: None,
        });
        let wildcards = self.wildcards.iter().map(|(pattern, _)| pattern.clone());
        let all = exact.chain(wildcards);
        all.filter_map(|pattern| pattern.narrow_path().map(<[u8]>::to_vec))
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn values(&self) -> &[T] {
        &self.values
    }

    /// The positions of all values whose pattern matches, in order, with what `*` stands for.
    pub(super) fn find<'p>(&self, path: &'p [u8]) -> Vec<(usize, &'p [u8])> {
        let exact = self.exact.get(path).into_iter().flatten();
        let mut found: Vec<_> = exact.map(|position| (*position, &path[..0])).collect();
        for (pattern, position) in &self.wildcards {
            if let Some(splat) = pattern.matches(path) {
                found.push((*position, splat));
            }
        }
        found.sort_unstable_by_key(|(position, _)| *position);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_paths() {
        for (pattern, path, expected) in [
            ("/a", "/a", Some("")),
            ("/a", "/a/", None),
            ("/a", "/ab", None),
            ("/a%20b", "/a b", Some("")),
            ("/*", "/", Some("")),
            ("/*", "/a/b", Some("a/b")),
            ("/a/*", "/a", None),
            ("/a/*", "/a/", Some("")),
            ("/a/*/c", "/a/b/c", Some("b")),
            ("/*.css", "/x/y.css", Some("x/y")),
            ("/ab*ba", "/aba", None),
            ("/%2A", "/*", Some("")),
        ] {
            let parsed = Pattern::parse(pattern).expect(pattern);
            let found = parsed.matches(path.as_bytes());
            assert_eq!(found, expected.map(str::as_bytes), "{pattern} {path}");
        }
        for wrong in ["", "a", "*", "/a*b*", "/a//b", "/%00", "https://a.example/"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_found_in_their_order() {
        let mut patterns = Patterns::default();
        for (number, pattern) in ["/a/*", "/a/b", "/*", "/a/b"].iter().enumerate() {
            let added = patterns.add(Pattern::parse(pattern).expect("one"), number);
            assert_eq!(added, Ok(()));
        }
        assert_eq!(patterns.len(), 4);
        let positions = |path: &str| {
            let found = patterns.find(path.as_bytes());
            found.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(positions("/a/b"), [0, 1, 2, 3]);
        assert_eq!(positions("/a/c"), [0, 2]);
        assert_eq!(positions("/x"), [2]);
        let mut many = Patterns::default();
        let wildcard = Pattern::parse("/*").expect("one");
        let added = (0..=WILDCARDS_MAX).map(|_| many.add(wildcard.clone(), ()));
        assert_eq!(added.filter(Result::is_err).count(), 1);
    }
}
