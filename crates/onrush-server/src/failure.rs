//! How the program ends when it cannot go on: one line on stderr, and an exit code. Must not know
//! what went wrong.

use std::fmt::Write;
use std::io;
use std::process::ExitCode;

/// Why the program ends early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Wrong usage: a flag, an environment variable, the configuration file. Exit code 2.
    Usage(String),
    /// It was asked for rightly and did not work. Exit code 1.
    Run(String),
}

impl Failure {
    /// A failure at run time.
    pub(crate) fn run(message: impl Into<String>) -> Failure {
        Failure::Run(message.into())
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::Usage(message.into())
    }

    /// Says it in one line, and gives the exit code. `as_event`: through the log, for those who
    /// read nothing but JSON.
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

/// What an error says, without the system's number for it, which means nothing to most.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let Some((before, after)) = text.split_once(" (os error ") else {
        return text;
    };
    let rest = after.split_once(')').map_or("", |(_, rest)| rest);
    format!("{before}{rest}")
}

/// Writes a line to stderr, control characters escaped. That nobody reads it stops nothing.
pub(crate) fn write_line(text: &str) {
    use io::Write as _;
    let line = one_line(text) + "\n";
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The same text with everything escaped that could end a line, steer a terminal or hide.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    escape(text, &mut line);
    line
}

/// Appends `text` to `line`, escaped as [`one_line`] says.
pub(crate) fn escape(text: &str, line: &mut String) {
    for c in text.chars() {
        if is_printable(c) {
            line.push(c);
        } else {
            let _ = write!(line, "{}", c.escape_debug()); // A string takes everything.
        }
    }
}

/// Whether a character shows as itself: no control, format or line separating character.
pub(crate) fn is_printable(c: char) -> bool {
    // The standard library escapes quotes and backslashes too, and they are harmless.
    matches!(c, ' '..='~') || (c > '~' && c.escape_debug().len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out() {
        let error = io::Error::from_raw_os_error(13);
        assert_eq!(reason(&error), "Permission denied");
        let error = io::Error::other(format!("refused: {error}; by a filter"));
        assert_eq!(reason(&error), "refused: Permission denied; by a filter");
        assert_eq!(reason(&io::Error::other("plain")), "plain");
    }

    #[test]
    fn nothing_breaks_the_line() {
        assert_eq!(one_line("it's \\ \"so\""), "it's \\ \"so\"");
        assert_eq!(one_line("a\r\nb\t\0"), "a\\r\\nb\\t\\0");
        assert_eq!(one_line("\x1b[31m\x7f"), "\\u{1b}[31m\\u{7f}");
        // A terminal's control sequences in one character; the other writing direction; a line end.
        assert_eq!(
            one_line("\u{9b}\u{202e}\u{2028}"),
            "\\u{9b}\\u{202e}\\u{2028}"
        );
        assert_eq!(one_line("größer 漢"), "größer 漢");
    }
}
