//! Checks what compilers and formatters do not: import direction, the length of lines and files, a
//! reason for each `unsafe`, files that are not compiled, and the
//! reasons for dependencies. Every complaint names its file and line.

mod dependencies;
mod edges;
mod layers;
mod paths;
mod source;
mod text;
mod unreached;
mod unsafety;

use crate::{
    Arguments, Failure,
    shell::{self, Outcome, capture},
};
use source::Source;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    Ok(check()?)
}

/// One violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Complaint {
    path: String,
    /// From 1.
    line: usize,
    message: String,
}

impl Complaint {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Complaint {
        Complaint {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks every source file of the repository.
pub(crate) fn check() -> Outcome {
    let root = shell::root();
    let files = read(&root)?;
    for warning in files.iter().filter_map(text::growing) {
        println!("warning: {warning}");
    }
    let mut complaints = complaints(&files);
    complaints.sort();
    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => {
            println!("{} files are tidy", files.len());
            Ok(())
        }
        1 => Err("1 complaint".to_owned()),
        count => Err(format!("{count} complaints")),
    }
}

/// The lines of the complaints of one check about one file.
#[cfg(test)]
fn complaint_lines(
    check: impl Fn(&Source, &mut Vec<Complaint>),
    path: &str,
    text: &str,
) -> Vec<usize> {
    let mut found = Vec::new();
    check(&Source::new(path.to_owned(), text.to_owned()), &mut found);
    found.into_iter().map(|complaint| complaint.line).collect()
}

fn complaints(files: &[Source]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for file in files {
        text::check(file, &mut found);
        if file.is_rust() {
            unsafety::check(file, &mut found);
        }
    }
    layers::check(files, &mut found);
    edges::check(files, &mut found);
    dependencies::check(files, &mut found);
    unreached::check(files, &mut found);
    found
}

/// Folders of binary data: inputs for fuzzers and tests.
const DATA: [&str; 3] = ["fuzz/seeds/", "fuzz/corpus/", "fuzz/artifacts/"];

/// Reads every text file that is part of the repository or not yet added.
fn read(root: &Path) -> Outcome<Vec<Source>> {
    let mut paths = listed(root).unwrap_or_else(|| walked(root));
    paths.sort();
    paths.retain(|path| !DATA.iter().any(|folder| path.starts_with(folder)));
    let mut files = Vec::new();
    for path in paths {
        // Git lists a deleted file until the deletion is recorded. Other files may not be text.
        if let Ok(text) = fs::read_to_string(root.join(&path)) {
            files.push(Source::new(path, text));
        }
    }
    match files.iter().any(Source::is_rust) {
        true => Ok(files),
        false => Err(format!("{} contains no source", root.display())),
    }
}

/// The files that git tracks or would add. `None` without git, as in an unpacked archive.
fn listed(root: &Path) -> Option<Vec<String>> {
    let arguments = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let (ok, text) = capture(Command::new("git").args(arguments).current_dir(root)).ok()?;
    ok.then(|| {
        text.split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect()
    })
}

/// All files except build results and files that the project writes at run time.
fn walked(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).into_iter().flatten();
        for entry in entries.filter_map(|entry| entry.ok()) {
            let path = folder.join(entry.file_name());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name();
            if is_folder && name != "target" && name != ".git" && name != "data" {
                folders.push(path);
            } else if !is_folder {
                found.extend(path.to_str().map(str::to_owned));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_file_is_found_both_ways() {
        let root = shell::root();
        let own = "xtask/src/tidy/mod.rs".to_owned();
        assert!(walked(&root).contains(&own));
        assert!(listed(&root).is_none_or(|paths| paths.contains(&own)));
    }

    #[test]
    fn complaints_name_file_and_line() {
        let text = "//! A module.\n\nfn f() {\n    let x = 1; \n}\n".to_owned();
        let found = complaints(&[Source::new("crates/onrush/src/x.rs".to_owned(), text)]);
        let shown: Vec<String> = found.iter().map(Complaint::to_string).collect();
        assert_eq!(
            shown,
            [
                "crates/onrush/src/x.rs:4: white space at the end of the line",
                "crates/onrush/src/x.rs:1: no target contains this file: name it in a `mod`, or \
                 delete it",
            ]
        );
    }
}
