//! Patterns of names: which of the names that begin with a dot clients see.

use std::fmt;
use std::sync::Arc;

/// A pattern of names that begin with a dot: its bytes, and `*` for any number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern(Box<str>);

impl NamePattern {
    /// A pattern begins with a dot, has no slash and no zero byte, and is as long as a name may be.
    /// The error is one line.
    ///
    /// ```
    /// # use onrush_store::NamePattern;
    /// assert!(NamePattern::parse(".z*").is_ok());
    /// assert!(NamePattern::parse("z*").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<NamePattern, &'static str> {
        match text {
            "." | ".." => Err("this is no name"),
            _ if !text.starts_with('.') => Err("a pattern begins with a dot, as in .z*"),
            _ if text.contains(['/', '\0']) => Err("a pattern is that of one name, without /"),
            _ if text.len() > crate::Key::SEGMENT_BYTES_MAX => {
                Err("a pattern has at most 255 bytes")
            }
            _ => Ok(NamePattern(text.into())),
        }
    }

    fn matches(&self, name: &[u8]) -> bool {
        let mut parts = self.0.as_bytes().split(|&byte| byte == b'*');
        let first = parts.next().unwrap_or_default();
        let Some(rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        let Some(mut rest) = rest.strip_suffix(last) else {
            return false;
        };
        // The first place of each part leaves the most room for those after it.
        parts.filter(|part| !part.is_empty()).all(|part| {
            let found = rest.windows(part.len()).position(|at| at == part);
            found
                .inspect(|at| rest = &rest[at + part.len()..])
                .is_some()
        })
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names that begin with a dot and are served like others. None by default. It says nothing
/// about those that are reserved for the store ([`Key::reserved`](crate::Key::reserved)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownNames(Option<Arc<[NamePattern]>>);

impl ShownNames {
    /// Those that one of the patterns matches.
    pub fn new(patterns: Vec<NamePattern>) -> ShownNames {
        ShownNames((!patterns.is_empty()).then(|| patterns.into()))
    }

    /// All of them.
    pub fn all() -> ShownNames {
        ShownNames::new(vec![NamePattern(".*".into())])
    }

    /// Whether all names that begin with a dot are hidden.
    pub fn are_none(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a name of a folder is hidden: it begins with a dot, and is none of these.
    pub fn hide(&self, name: &[u8]) -> bool {
        let mut shown = self.0.iter().flat_map(|patterns| patterns.iter());
        name.first() == Some(&b'.') && !shown.any(|pattern| pattern.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(patterns: &[&str]) -> ShownNames {
        let parse = |text: &&str| NamePattern::parse(text).expect("a pattern");
        ShownNames::new(patterns.iter().map(parse).collect())
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            (".z*", ".zarray", true),
            (".z*", ".z", true),
            (".z*", ".git", false),
            (".z*", ".Zarray", false),
            (".zarray", ".zarray", true),
            (".zarray", ".zarrayx", false),
            (".zarray", ".zarra", false),
            (".*", ".", true),
            (".*.json", ".a.json", true),
            (".*.json", ".json", false),
            (".a*b*c", ".abc", true),
            (".a*b*c", ".axbxbxc", true),
            (".a*b*c", ".ac", false),
            (".a**c", ".ac", true),
            (".ab*ab", ".ab", false),
            (".ab*ab", ".abab", true),
            (".*aab*", ".aaab", true),
        ] {
            let found = !shown(&[pattern]).hide(name.as_bytes());
            assert_eq!(found, expected, "{pattern} {name}");
        }
    }

    #[test]
    fn only_names_that_begin_with_a_dot_are_hidden() {
        let two = shown(&[".z*", ".config"]);
        for (name, is_hidden) in [("z", false), (".zgroup", false), (".config", false)] {
            assert_eq!(two.hide(name.as_bytes()), is_hidden, "{name}");
        }
        assert!(two.hide(b".git") && two.hide(b".\xff"));
        assert!(!ShownNames::all().hide(b".\xff") && ShownNames::default().hide(b".zgroup"));
        assert!(ShownNames::new(Vec::new()).are_none() && !two.are_none());
    }

    #[test]
    fn patterns_are_checked() {
        for text in [
            "",
            ".",
            "..",
            "*",
            "z*",
            ".a/b",
            "/.a",
            ".\0",
            &".a".repeat(128),
        ] {
            assert!(NamePattern::parse(text).is_err(), "{text}");
        }
        assert_eq!(
            NamePattern::parse(".z*").expect("a pattern").to_string(),
            ".z*"
        );
    }
}
