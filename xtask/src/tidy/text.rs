//! Rules about the text of one file: columns, white space, length, unfinished work, and module
//! documentation.

use super::{Complaint, source::Source};

const COLUMNS_MAX: usize = 100;
/// A file with more lines causes a warning.
const LINES_MANY: usize = 500;
/// A file with more lines causes a complaint.
const LINES_MAX: usize = 700;

/// Split in two parts each, so that this file does not contain the words.
const UNFINISHED: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("dbg", "!"),
];

pub(super) fn check(file: &Source, found: &mut Vec<Complaint>) {
    let mut complain = |line, message: String| {
        found.push(Complaint::new(&file.path, line, message));
    };
    let bounded = file.is_rust() || [".md", ".sh"].iter().any(|end| file.path.ends_with(end));
    for (at, line) in file.text.lines().enumerate() {
        let columns = line.chars().count();
        if bounded && columns > COLUMNS_MAX && !may_be_long(line) {
            complain(
                at + 1,
                format!("{columns} columns, more than {COLUMNS_MAX}"),
            );
        }
        // Also in Markdown: two spaces at the end of a line mean an invisible line break.
        if line.ends_with([' ', '\t', '\r']) {
            complain(at + 1, "white space at the end of the line".to_owned());
        }
        if file.is_rust() && line.contains('\t') {
            complain(at + 1, "a tab; write \\t, or spaces".to_owned());
        }
        if file.is_rust()
            && let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word))
        {
            complain(at + 1, format!("{word}: finish it, or open an issue"));
        }
    }
    let lines = file.text.lines().count();
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        complain(lines, "no line end at the end of the file".to_owned());
    }
    if file.is_rust() && lines > LINES_MAX {
        complain(
            lines,
            format!("{lines} lines, more than {LINES_MAX}: split the file"),
        );
    }
    if file.is_rust() && !has_module_doc(&file.text) {
        complain(1, "no module documentation: begin with `//!`".to_owned());
    }
}

/// Returns a warning for a file that is close to the maximum length.
pub(super) fn growing(file: &Source) -> Option<Complaint> {
    let lines = file.text.lines().count();
    let many = file.is_rust() && (LINES_MANY + 1..=LINES_MAX).contains(&lines);
    many.then(|| {
        Complaint::new(
            &file.path,
            lines,
            format!("{lines} lines; consider splitting the file"),
        )
    })
}

/// Whether a line may exceed the limit: tables and URLs cannot be wrapped.
fn may_be_long(line: &str) -> bool {
    let content = line
        .trim_start()
        .trim_start_matches(['/', '!'])
        .trim_start();
    content.starts_with('|') || content.contains("://")
}

/// Whether the file has module documentation. File attributes and blank lines may precede it.
fn has_module_doc(text: &str) -> bool {
    let first = text.lines().find(|line| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("#![")
    });
    first.is_some_and(|line| line.starts_with("//!") && line.len() > 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        check(&Source::new(path.to_owned(), text.to_owned()), &mut found);
        found
            .into_iter()
            .map(|complaint| (complaint.line, complaint.message))
            .collect()
    }

    /// The only complaint about a module with these lines after its documentation.
    fn about(lines: &str) -> Option<usize> {
        let found = complaints("x.rs", &format!("//! A module.\n{lines}\n"));
        assert!(found.len() < 2, "{found:?}");
        found.first().map(|(line, _)| *line)
    }

    #[test]
    fn columns_are_counted_in_characters() {
        let comment = |count: usize| format!("// {}", "é".repeat(count - 3));
        assert_eq!(about(&comment(100)), None);
        assert_eq!(about(&format!("\n{}", comment(101))), Some(3));
        assert_eq!(about(&format!("/// | {} |", "x".repeat(120))), None);
        assert_eq!(
            about(&format!("// see https://example.org/{}", "x".repeat(120))),
            None
        );
        assert_eq!(
            complaints("x.md", &format!("{}\n", "x".repeat(101))).len(),
            1
        );
        assert_eq!(
            complaints("x.toml", &format!("{}\n", "x".repeat(101))).len(),
            0
        );
    }

    #[test]
    fn white_space_is_checked() {
        assert_eq!(about("fn f() {} "), Some(2));
        assert_eq!(about("// a\tb"), Some(2));
        assert_eq!(complaints("x.toml", "a = 1 \n").len(), 1);
        assert_eq!(complaints("x.rs", "//! A module.").len(), 1);
    }

    #[test]
    fn words_for_unfinished_work_are_found() {
        for word in UNFINISHED {
            assert_eq!(about(&format!("\n// {word} later")), Some(3), "{word}");
        }
    }

    #[test]
    fn every_module_needs_documentation() {
        assert_eq!(complaints("x.rs", "fn f() {}\n").len(), 1);
        assert_eq!(complaints("x.rs", "//!\nfn f() {}\n").len(), 1);
        assert_eq!(
            complaints("x.rs", "#![no_main]\n\n//! A module.\n").len(),
            0
        );
    }

    #[test]
    fn long_files_cause_a_warning_first() {
        let source = |lines: usize| {
            let text = format!("//! A module.\n{}", "\n".repeat(lines - 1));
            Source::new("x.rs".to_owned(), text)
        };
        let failed = |lines| complaints("x.rs", &source(lines).text).len() == 1;
        assert_eq!((growing(&source(500)), failed(500)), (None, false));
        assert!(growing(&source(501)).is_some() && !failed(501));
        assert!(growing(&source(700)).is_some() && !failed(700));
        assert!(failed(701));
    }
}
