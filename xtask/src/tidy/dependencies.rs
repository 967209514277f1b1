//! Checks that ARCHITECTURE.md has a reason for every crate that the product uses, and for no other
//! crate. Crates that only tests use need no reason.

use super::{Complaint, source::Source};
use std::collections::BTreeMap;

/// The document with the reasons, and the heading above their table.
const TABLE: (&str, &str) = ("ARCHITECTURE.md", "## Dependencies");

pub(super) fn check(files: &[Source], found: &mut Vec<Complaint>) {
    let Some(page) = files.iter().find(|file| file.path == TABLE.0) else {
        return;
    };
    let explained = explained(&page.text);
    let mut used = BTreeMap::new();
    for file in files {
        let of_product = file.path.starts_with("crates/onrush") || file.path.starts_with("fuzz/");
        if of_product && file.path.ends_with("/Cargo.toml") {
            used.extend(used_by(file));
        }
    }
    for (name, (path, line)) in &used {
        if !explained.contains_key(name) {
            let message = format!("`{name}` has no line in {}, \"{}\"", TABLE.0, TABLE.1);
            found.push(Complaint::new(path, *line, message));
        }
    }
    for (name, line) in &explained {
        if !used.contains_key(name) {
            let message = format!("`{name}` is explained, but the product does not use it");
            found.push(Complaint::new(TABLE.0, *line, message));
        }
    }
}

/// The crates in the table's first column, such as `itoa, memchr` or `x (fuzz/ only)`, with their
/// lines.
fn explained(page: &str) -> BTreeMap<String, usize> {
    let lines = page.lines().enumerate();
    let below = lines.skip_while(|(_, line)| *line != TABLE.1).skip(1);
    let rows = below
        .take_while(|(_, line)| !line.starts_with('#'))
        .filter_map(|(at, line)| Some((at + 1, line.strip_prefix('|')?.split('|').next()?)))
        .skip(2); // The heading row and the line below it.
    let mut crates = BTreeMap::new();
    for (line, cell) in rows {
        let names = cell
            .split(',')
            .filter_map(|name| name.split_whitespace().next());
        crates.extend(names.map(|name| (name.to_owned(), line)));
    }
    crates
}

/// The external crates that a manifest names outside `[dev-dependencies]`, with their lines.
fn used_by(file: &Source) -> Vec<(String, (String, usize))> {
    let mut used = Vec::new();
    let mut in_section = false;
    for (at, line) in file.text.lines().enumerate() {
        let section = line
            .strip_prefix('[')
            .map(|name| name.trim_end_matches(']'));
        let mut name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if let Some(section) = section {
            let (before, one) = section.split_once("dependencies").unwrap_or(("dev-", ""));
            in_section = !before.ends_with("dev-") && one.is_empty();
            // `[dependencies.NAME]`
            name = match before.ends_with("dev-") {
                true => "",
                false => one.trim_start_matches('.'),
            };
        }
        let counts = in_section || section.is_some();
        if counts && !name.is_empty() && !name.starts_with(['#', '[']) && !is_own(name) {
            used.push((name.to_owned(), (file.path.clone(), at + 1)));
        }
    }
    used
}

fn is_own(name: &str) -> bool {
    name == "onrush" || name.starts_with("onrush-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"onrush\"\n\n[dependencies]\nitoa = \"1\"\n\
        # Why.\nonrush-rt.workspace = true\nmemchr = { version = \"2\" }\n\n\
        [dependencies.slab]\nversion = \"1\"\n\n[dev-dependencies]\nserde_json = \"1\"\n\n\
        [lints]\nworkspace = true\n";

    fn complaints(table: &str) -> Vec<String> {
        let page = format!("# A\n\n## Dependencies\n\n| crate | for |\n| --- | --- |\n{table}");
        let files = [
            Source::new("crates/onrush/Cargo.toml".to_owned(), MANIFEST.to_owned()),
            Source::new("ARCHITECTURE.md".to_owned(), page),
        ];
        let mut found = Vec::new();
        check(&files, &mut found);
        found.sort();
        found.iter().map(Complaint::to_string).collect()
    }

    #[test]
    fn used_and_explained_crates_are_the_same() {
        let none: [String; 0] = [];
        assert_eq!(
            complaints("| itoa, memchr | numbers |\n| slab | places |\n"),
            none
        );
        let table = "| itoa (always) | x |\n| memchr, serde_json | x |\n\n## More\n| a | b |\n";
        assert_eq!(
            complaints(table),
            [
                "ARCHITECTURE.md:8: `serde_json` is explained, but the product does not use it",
                "crates/onrush/Cargo.toml:10: `slab` has no line in ARCHITECTURE.md, \
                 \"## Dependencies\"",
            ]
        );
    }
}
