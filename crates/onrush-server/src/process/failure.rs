//! A fatal error of the program: one line on stderr and an exit code. The module also escapes text
//! for terminals.

use std::fmt::Write;
use std::io;
use std::process::ExitCode;

/// Why the program exits with an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Wrong usage: an invalid flag, environment variable or configuration file. Exit code 2.
    Usage(String),
    /// An error at run time. Exit code 1.
    Run(String),
}

impl Failure {
    /// An error at run time.
    pub(crate) fn run(message: impl Into<String>) -> Failure {
        Failure::Run(message.into())
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::Usage(message.into())
    }

    /// Prints the message as one line and returns the exit code. `as_event`: write it to the log
    /// instead, so that stderr contains only JSON.
    pub(crate) fn report(&self, as_event: bool) -> ExitCode {
        let (message, code) = match self {
            Failure::Usage(message) => (message, 2),
            Failure::Run(message) => (message, 1),
        };
        if as_event {
            tracing::error!(exit_code = code, "{message}");
        } else {
            write_line(&format!("onrush: {message}"));
        }
        ExitCode::from(code)
    }
}

/// The text of an error without `(os error N)`.
pub(crate) fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let Some((before, after)) = text.split_once(" (os error ") else {
        return text;
    };
    let rest = after.split_once(')').map_or("", |(_, rest)| rest);
    format!("{before}{rest}")
}

/// Writes a line to stderr with control characters escaped. Errors are ignored: stderr may be
/// closed.
pub(crate) fn write_line(text: &str) {
    use io::Write as _;
    let line = one_line(text) + "\n";
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The text with all characters escaped that end a line, control a terminal or are invisible.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    escape(text, &mut line);
    line
}

/// Appends `text` to `line`, escaped as in [`one_line`].
pub(crate) fn escape(text: &str, line: &mut String) {
    for c in text.chars() {
        if is_printable(c) {
            line.push(c);
        } else {
            let _ = write!(line, "{}", c.escape_debug()); // Writing to a String does not fail.
        }
    }
}

/// Whether a character is displayed as itself: not a control, format or line separator character.
pub(crate) fn is_printable(c: char) -> bool {
    // `escape_debug` also escapes quotes and backslashes, which are harmless.
    matches!(c, ' '..='~') || (c > '~' && c.escape_debug().len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_removed() {
        let error = io::Error::from_raw_os_error(13);
        assert_eq!(error_text(&error), "Permission denied");
        let error = io::Error::other(format!("refused: {error}; by a filter"));
        assert_eq!(
            error_text(&error),
            "refused: Permission denied; by a filter"
        );
        assert_eq!(error_text(&io::Error::other("plain")), "plain");
    }

    #[test]
    fn text_is_escaped_to_one_line() {
        assert_eq!(one_line("it's \\ \"so\""), "it's \\ \"so\"");
        assert_eq!(one_line("a\r\nb\t\0"), "a\\r\\nb\\t\\0");
        assert_eq!(one_line("\x1b[31m\x7f"), "\\u{1b}[31m\\u{7f}");
        // The one-character form of a control sequence; a change of direction; a line separator.
        assert_eq!(
            one_line("\u{9b}\u{202e}\u{2028}"),
            "\\u{9b}\\u{202e}\\u{2028}"
        );
        assert_eq!(one_line("größer 漢"), "größer 漢");
    }
}
