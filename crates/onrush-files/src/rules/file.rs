//! The lines of a file of rules.

/// The maximum size of a file. A larger one was probably named by mistake.
const BYTES_MAX: u64 = 1 << 20;

/// A line with content, without its comment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'t> {
    /// From 1.
    pub(super) number: usize,
    /// Without white space at its ends.
    pub(super) text: &'t str,
    /// It begins with white space.
    pub(super) is_indented: bool,
}

impl Line<'_> {
    /// An error about this line.
    pub(super) fn error(&self, what: &str) -> String {
        format!("line {}: {what}", self.number)
    }
}

/// The lines with content. A comment begins with `#` at the beginning of a line or after white
/// space.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let is_comment = |&(at, _): &(usize, &str)| at == 0 || line[..at].ends_with([' ', '\t']);
        let comment = line.match_indices('#').find(is_comment);
        let line = &line[..comment.map_or(line.len(), |(at, _)| at)];
        let text = line.trim();
        (!text.is_empty()).then_some(Line {
            number: index + 1,
            text,
            is_indented: line.starts_with([' ', '\t']),
        })
    })
}

/// Reads a file of rules. An error is one line, without the path.
pub(super) fn read(path: &std::path::Path) -> Result<String, String> {
    let found = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if !found.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if found.len() > BYTES_MAX {
        return Err("is longer than 1 MiB".to_owned());
    }
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => "is not UTF-8 text".to_owned(),
        _ => format!("cannot be read: {error}"),
    })
}
