//! Resolves paths in code to modules of their crate.

use super::source::Token;

/// A path from the crate's root, and its line.
pub(super) type Reference<'c> = (Vec<&'c str>, usize);

/// Returns every path in `tokens` that begins in this crate. `module` is the module of the tokens.
pub(super) fn references<'c>(tokens: &[Token<'c>], module: &[&'c str]) -> Vec<Reference<'c>> {
    let mut found = Vec::new();
    // Modules defined inside this file, and the depth of braces at which each began.
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    while at < tokens.len() {
        let begins_path = text(at + 1) == "::" && (at == 0 || text(at - 1) != "::");
        let mut base: Vec<&str> = module.to_vec();
        base.extend(inline.iter().map(|(name, _)| *name));
        match text(at) {
            "mod" if text(at + 2) == "{" => inline.push((text(at + 1), depth)),
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.pop_if(|(_, began)| *began == depth);
            }
            "crate" if begins_path => {
                at += 2;
                read_tree(tokens, &mut at, Vec::new(), &mut found);
                continue;
            }
            "self" | "super" if begins_path => {
                while matches!(text(at), "self" | "super") && text(at + 1) == "::" {
                    if text(at) == "super" {
                        base.pop();
                    }
                    at += 2;
                }
                read_tree(tokens, &mut at, base, &mut found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads the rest of a path, or a tree of paths in braces, that begins at `at` after `prefix`.
pub(super) fn read_tree<'c>(
    tokens: &[Token<'c>],
    at: &mut usize,
    mut prefix: Vec<&'c str>,
    found: &mut Vec<Reference<'c>>,
) {
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.text {
            "{" => {
                while tokens.get(*at).is_some_and(|token| token.text != "}") {
                    read_tree(tokens, at, prefix.clone(), found);
                    *at += usize::from(tokens.get(*at).is_some_and(|token| token.text == ","));
                }
                *at += 1;
                return;
            }
            // Any token may follow a path in an expression; the caller handles it.
            text if text != "*" && !text.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                found.push((prefix, token.line));
                *at -= usize::from(matches!(text, "}" | ")" | "]" | ";"));
                return;
            }
            text => {
                prefix.push(text);
                match tokens.get(*at).map(|token| token.text) {
                    Some("::") => *at += 1,
                    after => {
                        // The new name of a renamed item follows its original name.
                        if after == Some("as") {
                            prefix.extend(tokens.get(*at + 1).map(|token| token.text));
                            *at += 2;
                        }
                        found.push((prefix, token.line));
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::source::Source, *};

    fn paths(text: &str) -> Vec<String> {
        let source = Source::new("x.rs".to_owned(), text.to_owned());
        let found = references(&source.tokens(), &["a", "b"]);
        found
            .into_iter()
            .map(|(path, line)| format!("{}@{line}", path.join(".")))
            .collect()
    }

    #[test]
    fn paths_are_resolved_from_their_module() {
        assert_eq!(paths("use crate::x::Y;"), ["x.Y@1"]);
        assert_eq!(paths("use super::x;\nuse self::y;"), ["a.x@1", "a.b.y@2"]);
        assert_eq!(paths("use super::super::x;"), ["x@1"]);
        assert_eq!(
            paths("mod c {\nfn f() { super::g() }\n}\nuse super::h;"),
            ["a.b.g@2", "a.h@4"]
        );
        assert_eq!(paths("use std::x; use other::crate_::y;"), [""; 0]);
    }

    #[test]
    fn trees_are_expanded() {
        let text = "use crate::{a::{self, b}, c as d, e::*,};";
        assert_eq!(paths(text), ["a.self@1", "a.b@1", "c.d@1", "e.*@1"]);
        assert_eq!(paths("x(crate::a::b::<u8>(1), crate::c)"), ["a.b@1", "c@1"]);
    }
}
