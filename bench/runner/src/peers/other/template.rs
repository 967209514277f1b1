//! Configuration files from the templates in `bench/peers/conf`.

use super::absolute;
use std::path::Path;
use xtask::shell::Outcome;

/// Replaces each `{name}` in a template by its value. Values may contain braces.
///
/// Fails if a name has no value, or if a value is not used.
pub(super) fn fill(template: &str, values: &[(&str, &str)]) -> Outcome<String> {
    let mut filled = String::with_capacity(template.len() + 256);
    let mut unused: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    let mut rest = template;
    while let Some((before, name, after)) = next_name(rest) {
        let value = values.iter().find(|(known, _)| *known == name);
        let (_, value) = value.ok_or_else(|| format!("no value for `{name}` in a template"))?;
        filled.push_str(before);
        filled.push_str(value);
        unused.retain(|left| *left != name);
        rest = after;
    }
    filled.push_str(rest);
    match unused.first() {
        Some(name) => Err(format!("a template has no place for `{name}`")),
        None => Ok(filled),
    }
}

/// The first `{name}`: the text before it, the name, and the text after it. All other braces are
/// syntax of the configuration.
fn next_name(text: &str) -> Option<(&str, &str, &str)> {
    text.match_indices('{').find_map(|(open, _)| {
        let inner = &text[open + 1..];
        let len = inner.find('}')?;
        let name = &inner[..len];
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
        is_name.then(|| (&text[..open], name, &inner[len + 1..]))
    })
}

/// The absolute path, if it can be written between double quotes in all configuration languages.
pub(super) fn quotable(path: &Path) -> Outcome<String> {
    let path = absolute(path)?;
    let special = |c: char| c.is_control() || "\"\\$`{}#%".contains(c);
    path.to_str()
        .filter(|text| !text.contains(special))
        .map(str::to_owned)
        .ok_or_else(|| {
            let shown = path.display();
            format!("{shown} has a character that configuration files cannot contain")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_and_other_braces_stay() {
        let filled = fill(
            "a { port {port}; x \"{folder}/y\" } {port}",
            &[("port", "80"), ("folder", "/{port}")],
        );
        assert_eq!(
            filled,
            Ok("a { port 80; x \"/{port}/y\" } 80".to_owned()),
            "values are not templates"
        );
        let json = r#"{"message":"{}"} {A} {a b} {"#;
        assert_eq!(fill(json, &[]), Ok(json.to_owned()));
    }

    #[test]
    fn templates_and_values_must_belong_together() {
        assert!(fill("{port}", &[]).unwrap_err().contains("`port`"));
        assert!(fill("", &[("port", "1")]).unwrap_err().contains("`port`"));
    }

    #[test]
    fn paths_with_special_characters_are_rejected() {
        assert_eq!(
            quotable(Path::new("/srv/a b/c-d_e.f")),
            Ok("/srv/a b/c-d_e.f".to_owned())
        );
        assert!(quotable(Path::new("files")).unwrap().ends_with("/files"));
        for path in ["/a\"b", "/a$b", "/a\\b", "/a{b}", "/a\nb"] {
            assert!(quotable(Path::new(path)).is_err(), "{path}");
        }
    }
}
