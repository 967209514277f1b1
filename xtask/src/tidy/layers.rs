//! Checks that a module uses only modules of lower layers. The module documentation defines the
//! layers, so the documentation is always correct: a `lib.rs` with more than one module must name
//! its modules after the words "lowest first", to the end of the sentence, with `·` between layers.
//! Any other module may do so for its submodules. Modules of one layer may use each other.
//!
//! The check covers paths through `crate::`, `super::` and `self::`, in imports and elsewhere. It
//! ignores items under `#[cfg(test)]`.

use super::{
    Complaint,
    paths::{read_tree, references},
    source::Source,
};
use std::collections::{BTreeMap, BTreeSet};

/// The words after which the documentation names the modules.
const ANNOUNCEMENT: &str = "lowest first";

pub(super) fn check(files: &[Source], found: &mut Vec<Complaint>) {
    for parent in files {
        let Some((folder, prefix)) = place(&parent.path) else {
            continue;
        };
        let layers = Layers::read(parent, prefix);
        let is_required = layers.prefix.is_empty() && layers.declared.len() > 1;
        if layers.order.is_empty() && !is_required {
            continue;
        }
        layers.check_names(found);
        for file in files.iter().filter(|file| file.path.starts_with(folder)) {
            if let Some((_, module)) = place(&file.path) {
                layers.check_module(file, &module, found);
            }
        }
    }
}

/// The source folder of the crate that `path` belongs to, and its module path there, which is empty
/// for the library itself. `None` for files outside libraries; programs may use every module.
fn place(path: &str) -> Option<(&str, Vec<&str>)> {
    let (name, _) = path.strip_prefix("crates/")?.split_once('/')?;
    let (folder, file) = path.split_at_checked("crates/".len() + name.len() + "/src/".len())?;
    let mut module: Vec<&str> = file.strip_suffix(".rs")?.split('/').collect();
    match module.as_slice() {
        _ if !folder.ends_with("/src/") => return None,
        ["main"] | ["bin", ..] => return None,
        ["lib"] | [.., "mod"] => drop(module.pop()),
        _ => {}
    }
    Some((folder, module))
}

/// The layers that a module documents for its submodules.
struct Layers<'f> {
    parent: &'f Source,
    /// The module path of `parent`.
    prefix: Vec<&'f str>,
    /// The modules of each layer, in the order of the documentation.
    order: Vec<Vec<String>>,
    /// The submodules, and the lines of their declarations.
    declared: BTreeMap<String, usize>,
    /// Names that `parent` imports or re-exports, and the modules they come from.
    exported: BTreeMap<String, String>,
}

impl<'f> Layers<'f> {
    fn read(parent: &'f Source, prefix: Vec<&'f str>) -> Layers<'f> {
        let tokens = parent.product_tokens();
        let declared = tokens.windows(3).filter_map(|three| match three {
            [word, name, end] if word.text == "mod" && end.text == ";" => {
                Some((name.text.to_owned(), name.line))
            }
            _ => None,
        });
        let declared: BTreeMap<String, usize> = declared.collect();
        let mut exported = BTreeMap::new();
        for at in 0..tokens.len() {
            if tokens[at].text != "use" {
                continue;
            }
            let mut paths = Vec::new();
            let mut next = at + 1;
            read_tree(&tokens, &mut next, Vec::new(), &mut paths);
            for (path, _) in paths {
                let inside = usize::from(path.first() == Some(&"self"));
                if let [module, .., name] = &path[inside..] {
                    exported.insert((*name).to_owned(), (*module).to_owned());
                }
            }
        }
        let order = documented(&parent.text);
        Layers {
            parent,
            prefix,
            order,
            declared,
            exported,
        }
    }

    /// Checks that each module is in exactly one layer, and that each layer names only modules.
    fn check_names(&self, found: &mut Vec<Complaint>) {
        let mut complain = |line, message| {
            found.push(Complaint::new(&self.parent.path, line, message));
        };
        let mut named = BTreeSet::new();
        for module in self.order.iter().flatten() {
            if !self.declared.contains_key(module) {
                complain(1, format!("the layer `{module}` is not a module here"));
            } else if !named.insert(module) {
                complain(1, format!("`{module}` is named in two layers"));
            }
        }
        for (module, line) in self
            .declared
            .iter()
            .filter(|(module, _)| !named.contains(module))
        {
            complain(
                *line,
                format!("`{module}` has no layer: name it after \"{ANNOUNCEMENT}\""),
            );
        }
    }

    fn layer(&self, module: &str) -> Option<usize> {
        self.order
            .iter()
            .position(|layer| layer.iter().any(|name| name == module))
    }

    /// Checks that `file`, the module `path`, uses no module of a higher layer.
    fn check_module(&self, file: &Source, path: &[&str], found: &mut Vec<Complaint>) {
        let within = path
            .strip_prefix(self.prefix.as_slice())
            .and_then(<[_]>::first);
        // A file without a layer is the parent itself, another module's file, or for tests.
        let Some((own, layer)) = within.and_then(|own| Some((*own, self.layer(own)?))) else {
            return;
        };
        let tokens = file.product_tokens();
        let used = references(&tokens, path)
            .into_iter()
            .filter_map(|(used, line)| {
                let name = used.strip_prefix(self.prefix.as_slice())?.first()?;
                Some((line, *name))
            });
        for (line, name) in used.collect::<BTreeSet<_>>() {
            if name == "*" && self.prefix.is_empty() {
                let message = "everything in the crate's root is imported; name what is used";
                found.push(Complaint::new(&file.path, line, message));
            }
            let module = match self.exported.get(name) {
                Some(module) if !self.declared.contains_key(name) => module,
                _ => name,
            };
            if self.layer(module).is_some_and(|used| used > layer) {
                let message = format!("`{own}` uses `{module}`, which is above it");
                found.push(Complaint::new(&file.path, line, message));
            }
        }
    }
}

/// The names in backticks from the announcement to the end of its sentence, layer by layer. Text in
/// parentheses is ignored.
fn documented(text: &str) -> Vec<Vec<String>> {
    let is_doc = |line: &&str| line.starts_with("//!") || line.starts_with("#![");
    let docs = text.lines().take_while(is_doc);
    let docs: Vec<&str> = docs
        .map(|line| line.trim_start_matches("//!").trim())
        .collect();
    let paragraphs = docs
        .split(|line| line.is_empty())
        .map(|lines| lines.join(" "));
    let sentence = paragraphs.filter_map(|paragraph| {
        let (_, list) = paragraph.split_once(ANNOUNCEMENT)?;
        Some(
            list.split_once(". ")
                .map_or(list, |(sentence, _)| sentence)
                .to_owned(),
        )
    });
    let sentence = sentence.collect::<String>();
    // Each piece except the first begins inside a parenthesis.
    let mut list = String::new();
    for (at, piece) in sentence.split('(').enumerate() {
        list += if at == 0 {
            piece
        } else {
            piece.split_once(')').map_or("", |(_, after)| after)
        };
    }
    let names = |layer: &str| {
        layer
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    list.split('·')
        .map(names)
        .filter(|layer: &Vec<String>| !layer.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "//! A crate.\n//!\n//! Layers inside this crate, lowest first (a\n\
        //! `word`): [`below`] · `low` · [`mid`] and\n//! [`peer`] · [`high`]. But `unsafe`.\n\
        mod low;\npub mod mid;\nmod high;\nmod below;\nmod peer;\n#[cfg(test)]\nmod tools;\n\
        pub use high::{Thing, Other as Else};\n";

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let library = ("lib.rs", LIBRARY);
        let sources = files
            .iter()
            .chain([&library])
            .map(|(name, text)| Source::new(format!("crates/x/src/{name}"), (*text).to_owned()));
        let mut found = Vec::new();
        check(&sources.collect::<Vec<_>>(), &mut found);
        let shown = found.iter().map(Complaint::to_string);
        shown
            .map(|line| line.trim_start_matches("crates/x/src/").to_owned())
            .collect()
    }

    #[test]
    fn the_documentation_defines_the_order() {
        let expected = [
            vec!["below"],
            vec!["low"],
            vec!["mid", "peer"],
            vec!["high"],
        ];
        assert_eq!(documented(LIBRARY), expected);
        assert!(documented("//! Layers: `a`\n").is_empty());
    }

    #[test]
    fn lower_layers_may_be_used() {
        let text = "use crate::low::{self, a};\nuse crate::{below, mid::b};\nuse super::low as l;\n\
            fn f() { crate::mid::b::<u8>(self::c, super::low::d) }\n";
        assert_eq!(
            complaints(&[("high.rs", text), ("low.rs", ""), ("mid.rs", "")]),
            [""; 0]
        );
    }

    #[test]
    fn higher_layers_may_not_be_used() {
        for text in [
            "use crate::high::x;",
            "use crate::{low, high};",
            "use crate::{low::{a, b}, high::*};",
            "use super::high;",
            "fn f() -> u8 { crate::high::x() }",
            "mod inner { use super::super::high; }",
            "use crate::Thing;",
            "use crate::{low, Else};",
        ] {
            let found = complaints(&[("mid.rs", &format!("\n{text}\n"))]);
            assert_eq!(
                found,
                ["mid.rs:2: `mid` uses `high`, which is above it"],
                "{text}"
            );
        }
        let found = complaints(&[("mid/deep.rs", "use super::super::high;")]);
        assert_eq!(
            found,
            ["mid/deep.rs:1: `mid` uses `high`, which is above it"]
        );
    }

    #[test]
    fn comments_tests_and_programs_are_ignored() {
        let text = "//! [`crate::high`]\n#[cfg(test)]\nmod tests { use crate::high::x; }\n\
            mod inner { use super::high; }\nfn f() { \"crate::high\" }\n";
        assert_eq!(
            complaints(&[("mid.rs", text), ("tools.rs", "use crate::high;")]),
            [""; 0]
        );
        assert_eq!(complaints(&[("main.rs", "use crate::high;")]), [""; 0]);
        // In a folder module `super` is the folder.
        assert_eq!(complaints(&[("mid/deep.rs", "use super::high;")]), [""; 0]);
    }

    #[test]
    fn modules_of_one_layer_may_use_each_other() {
        let files = [
            ("mid.rs", "use crate::peer::x;"),
            ("peer.rs", "use crate::mid::y;"),
        ];
        assert_eq!(complaints(&files), [""; 0]);
    }

    #[test]
    fn a_folder_may_have_layers() {
        let folder = "//! A folder; lowest first: `a` · `b`.\nmod a;\nmod b;\nuse b::Thing;\n";
        let files = |a| {
            [
                ("mid/mod.rs", folder),
                ("mid/a.rs", a),
                ("mid/b.rs", "use super::a;"),
            ]
        };
        assert_eq!(complaints(&files("use super::c; use crate::low;")), [""; 0]);
        for text in [
            "use super::b;",
            "use crate::mid::b::x;",
            "use super::Thing;",
        ] {
            let found = complaints(&files(text));
            assert_eq!(
                found,
                ["mid/a.rs:1: `a` uses `b`, which is above it"],
                "{text}"
            );
        }
        let undocumented = "//! A folder.\nmod a;\nmod b;\n";
        assert_eq!(
            complaints(&[("mid/mod.rs", undocumented), ("mid/a.rs", "use super::b;")]),
            [""; 0]
        );
    }

    #[test]
    fn the_root_may_not_be_imported_with_a_glob() {
        let found = complaints(&[("mid.rs", "use crate::*;")]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn modules_and_layers_must_agree() {
        let check = |text: &str| {
            let mut found = Vec::new();
            let source = Source::new("crates/x/src/lib.rs".to_owned(), text.to_owned());
            super::check(&[source], &mut found);
            found.len()
        };
        assert_eq!(check("//! A crate.\n"), 0);
        assert_eq!(check("//! A crate.\nmod a;\n"), 0);
        assert_eq!(check("//! A crate.\nmod a;\nmod b;\n"), 2);
        assert_eq!(check(&format!("//! {ANNOUNCEMENT}: `a`.\nmod a;\n")), 0);
        assert_eq!(
            check(&format!("//! {ANNOUNCEMENT}: `a`, `b`.\nmod a;\n")),
            1
        );
        assert_eq!(
            check(&format!("//! {ANNOUNCEMENT}: `a`, `a`.\nmod a;\n")),
            1
        );
    }
}
