//! Complains about Rust files that no target of a package contains. Cargo does not compile such a
//! file, so nothing checks it and its tests never run.
//!
//! The search begins at the targets: those that cargo finds by their place in the package, and
//! those that a manifest names by `path`. It follows `mod name;` with and without `#[path]`. It
//! does not know `include!` and `cfg_attr(…, path)`, which this repository does not use.

use super::{Complaint, source::Source};
use std::collections::{BTreeMap, BTreeSet};

/// The conditions under which some run compiles a module that is a file.
const CONDITIONS: [&str; 13] = [
    "test",
    "all(test, loom)",
    "any(feature = \"forms\", feature = \"json\")",
    "feature = \"axum\"",
    "feature = \"compression\"",
    "feature = \"cookies\"",
    "feature = \"coroutine\"",
    "feature = \"forms\"",
    "feature = \"http\"",
    "feature = \"json\"",
    "feature = \"testing\"",
    "feature = \"tls\"",
    "not(feature = \"tls\")",
];

pub(super) fn check(files: &[Source], found: &mut Vec<Complaint>) {
    for file in files.iter().filter(|file| file.is_rust()) {
        for line in never_compiled(&file.text) {
            let message = "no run compiles a module under this condition";
            found.push(Complaint::new(&file.path, line, message));
        }
    }
    let sources: BTreeMap<&str, &Source> = files
        .iter()
        .filter(|file| file.is_rust())
        .map(|file| (file.path.as_str(), file))
        .collect();
    let mut reached = BTreeSet::new();
    let mut next = targets(files);
    while let Some(module) = next.pop() {
        let Some(file) = sources.get(module.path.as_str()) else {
            continue;
        };
        let children = children(file, module.owns_folder);
        if reached.insert(module) {
            next.extend(children);
        }
    }
    let reached: BTreeSet<&str> = reached.iter().map(|module| module.path.as_str()).collect();
    for path in sources.keys().filter(|path| !reached.contains(**path)) {
        let message = "no target contains this file: name it in a `mod`, or delete it";
        found.push(Complaint::new(path, 1, message));
    }
}

/// The lines of conditions of modules that are none of [`CONDITIONS`].
fn never_compiled(text: &str) -> impl Iterator<Item = usize> {
    let lines = text.lines().zip(text.lines().skip(1)).enumerate();
    lines.filter_map(|(number, (line, next))| {
        let condition = line.trim().strip_prefix("#[cfg(")?.strip_suffix(")]")?;
        let words: Vec<&str> = next.split_whitespace().collect();
        let is_file = matches!(words[..], [.., "mod", name] if name.ends_with(';'));
        (is_file && !CONDITIONS.contains(&condition)).then_some(number + 1)
    })
}

/// A file that is compiled.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Module {
    path: String,
    /// Whether the modules of this file are beside it, as for `mod.rs` and the root of a crate.
    /// Those of any other file are in a folder with its name.
    owns_folder: bool,
}

/// The roots of all targets of all packages. Some of the files may not exist.
fn targets(files: &[Source]) -> Vec<Module> {
    let mut paths = Vec::new();
    for manifest in files {
        let Some(folder) = manifest.path.strip_suffix("Cargo.toml") else {
            continue;
        };
        if !manifest.text.lines().any(|line| line == "[package]") {
            continue;
        }
        let names_tests = manifest
            .text
            .lines()
            .any(|line| line == "autotests = false");
        let discovered = files.iter().filter(|file| {
            let within = file.path.strip_prefix(folder);
            let within = within.filter(|path| !(names_tests && path.starts_with("tests/")));
            within.is_some_and(is_discovered)
        });
        paths.extend(discovered.map(|file| file.path.clone()));
        paths.extend(named(&manifest.text).map(|path| join(folder, path)));
    }
    let target = |path| Module {
        path,
        owns_folder: true,
    };
    paths.into_iter().map(target).collect()
}

/// Whether cargo makes a target of a file without an entry in the manifest. `path` begins in the
/// folder of the package.
fn is_discovered(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", rest @ ..] | ["tests" | "examples" | "benches", rest @ ..] => {
            matches!(rest, [_] | [_, "main.rs"])
        }
        _ => false,
    }
}

/// The values of `path` in the sections of targets, and of `build` in `[package]`.
fn named(manifest: &str) -> impl Iterator<Item = &str> {
    let mut section = "";
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        }
        let (key, value) = line.split_once('=')?;
        let names_target = match section {
            "lib" | "bin" | "test" | "example" | "bench" => key.trim() == "path",
            "package" => key.trim() == "build",
            _ => false,
        };
        value.split('"').nth(1).filter(|_| names_target)
    })
}

/// The files that the `mod name;` items of `file` may refer to, including items for tests. For an
/// item without `#[path]`, both places are returned; at most one of them exists.
fn children(file: &Source, owns_folder: bool) -> Vec<Module> {
    let folder = match file.path.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/"),
        None => String::new(),
    };
    let own = match owns_folder {
        true => folder.clone(),
        false => format!("{}/", file.path.trim_end_matches(".rs")),
    };
    let tokens = file.tokens();
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut found = Vec::new();
    // Modules defined inside this file, and the depth of braces at which each began.
    let mut inline: Vec<(&str, usize)> = Vec::new();
    let mut depth = 0usize;
    let mut attribute = None;
    for at in 0..tokens.len() {
        match text(at) {
            "[" if (text(at + 1), text(at + 2)) == ("path", "=") => {
                attribute = path_literal(file, tokens[at + 1].line);
            }
            "mod" if text(at + 2) == "{" => inline.push((text(at + 1), depth)),
            "mod" if text(at + 2) == ";" => {
                let mut folders = own.clone();
                inline.iter().for_each(|(name, _)| {
                    folders.push_str(name);
                    folders.push('/');
                });
                let mut push = |path, owns_folder| found.push(Module { path, owns_folder });
                let name = text(at + 1);
                match attribute.take() {
                    Some(path) if inline.is_empty() => push(join(&folder, path), true),
                    Some(path) => push(join(&folders, path), true),
                    None => {
                        push(format!("{folders}{name}.rs"), false);
                        push(format!("{folders}{name}/mod.rs"), true);
                    }
                }
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inline.pop_if(|(_, began)| *began == depth);
            }
            _ => {}
        }
    }
    found
}

/// The value of the attribute `#[path = "…"]` on a line. The tokens do not contain literals.
fn path_literal(file: &Source, line: usize) -> Option<&str> {
    let line = file.text.lines().nth(line - 1)?;
    let (_, value) = line.split_once("path")?;
    value.split('"').nth(1)
}

/// Appends `path` to `folder`, which is empty or ends with `/`, and removes `.` and `..`.
fn join(folder: &str, path: &str) -> String {
    let mut parts = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"x\"\n";

    /// The paths of the files that no target contains, in a package in the folder `x`.
    fn unreached(manifest: &str, files: &[(&str, &str)]) -> Vec<String> {
        let manifest = Source::new("x/Cargo.toml".to_owned(), manifest.to_owned());
        let sources = files
            .iter()
            .map(|(path, text)| Source::new((*path).to_owned(), (*text).to_owned()))
            .chain([manifest]);
        let mut found = Vec::new();
        check(&sources.collect::<Vec<_>>(), &mut found);
        found.into_iter().map(|complaint| complaint.path).collect()
    }

    #[test]
    fn modules_under_unknown_conditions_are_found() {
        let text =
            "#[cfg(test)]\nmod a;\n#[cfg(any())]\npub(crate) mod b;\n#[cfg(unix)]\nmod c {}\n";
        assert_eq!(never_compiled(text).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn cargo_finds_targets_by_their_place() {
        let targets = [
            "x/build.rs",
            "x/src/lib.rs",
            "x/src/main.rs",
            "x/src/bin/a.rs",
            "x/src/bin/b/main.rs",
            "x/tests/a.rs",
            "x/tests/b/main.rs",
            "x/examples/a.rs",
            "x/benches/a.rs",
        ];
        assert_eq!(
            unreached(MANIFEST, &targets.map(|path| (path, ""))),
            [""; 0]
        );
        let others = [
            "other/src/lib.rs",
            "x/a.rs",
            "x/src/a.rs",
            "x/src/bin/b/c.rs",
            "x/tests/common/mod.rs",
        ];
        assert_eq!(unreached(MANIFEST, &others.map(|path| (path, ""))), others);
        // The manifest of a workspace alone makes no targets.
        let workspace = "[workspace]\nmembers = []\n";
        assert_eq!(unreached(workspace, &[("x/src/lib.rs", "")]).len(), 1);
    }

    #[test]
    fn a_manifest_names_targets_elsewhere() {
        let manifest = format!(
            "{MANIFEST}build = \"make.rs\"\n[lib]\npath = \"lib.rs\"\n\n[[bin]]\nname = \"a\"\n\
             path = \"programs/a.rs\"\n[[example]]\npath = \"../shown/b.rs\"\n\
             [dependencies]\ny = {{ path = \"c.rs\" }}\npath = \"c.rs\"\n"
        );
        let files = [
            "shown/b.rs",
            "x/c.rs",
            "x/lib.rs",
            "x/make.rs",
            "x/programs/a.rs",
        ];
        assert_eq!(
            unreached(&manifest, &files.map(|path| (path, ""))),
            ["x/c.rs"]
        );
    }

    #[test]
    fn a_manifest_may_name_all_tests() {
        let manifest = format!(
            "{MANIFEST}autotests = false\n[[test]]\nname = \"t\"\npath = \"tests/main.rs\"\n"
        );
        let files = [
            ("x/examples/a.rs", ""),
            ("x/tests/forgotten.rs", ""),
            ("x/tests/main.rs", "mod named;"),
            ("x/tests/named.rs", ""),
            ("x/tests/other/main.rs", ""),
        ];
        let expected = ["x/tests/forgotten.rs", "x/tests/other/main.rs"];
        assert_eq!(unreached(&manifest, &files), expected);
    }

    #[test]
    fn modules_are_followed_to_their_files() {
        let files = [
            (
                "x/src/lib.rs",
                "pub mod a;\n#[cfg(test)]\nmod tests;\nmod inner { pub(crate) mod b; }\nmod c;\n\
                 // mod comment;\nconst TEXT: &str = \"mod literal;\";",
            ),
            ("x/src/a.rs", "mod deep;"),
            ("x/src/a/deep.rs", ""),
            ("x/src/c/mod.rs", "mod d;"),
            ("x/src/c/d.rs", ""),
            ("x/src/comment.rs", ""),
            ("x/src/deep.rs", ""),
            ("x/src/inner/b.rs", ""),
            ("x/src/literal.rs", ""),
            ("x/src/tests.rs", ""),
        ];
        let expected = ["x/src/comment.rs", "x/src/deep.rs", "x/src/literal.rs"];
        assert_eq!(unreached(MANIFEST, &files), expected);
    }

    #[test]
    fn a_path_attribute_replaces_the_place() {
        let files = [
            (
                "x/tests/a.rs",
                "#[allow(dead_code)]\n#[path = \"common/tools.rs\"]\nmod helpers;\nmod other;\n\
                 #[path = \"../../y/tests/shared.rs\"]\nmod shared;",
            ),
            // The modules of a file with the attribute are beside it.
            ("x/tests/common/tools.rs", "mod part;"),
            ("x/tests/common/part.rs", ""),
            ("x/tests/common/tools/part.rs", ""),
            ("x/tests/helpers/mod.rs", ""),
            ("x/tests/other/mod.rs", ""),
            ("y/tests/shared.rs", ""),
        ];
        let expected = ["x/tests/common/tools/part.rs", "x/tests/helpers/mod.rs"];
        assert_eq!(unreached(MANIFEST, &files), expected);
    }

    #[test]
    fn modules_that_only_name_each_other_are_unreached() {
        let files = [
            ("x/src/lib.rs", ""),
            ("x/src/a.rs", "#[path = \"b.rs\"]\nmod b;"),
            ("x/src/b.rs", "#[path = \"a.rs\"]\nmod a;"),
        ];
        assert_eq!(unreached(MANIFEST, &files), ["x/src/a.rs", "x/src/b.rs"]);
    }
}
