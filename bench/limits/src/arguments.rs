//! The arguments of the bare loops: the port first, what the loop is for after it.

use std::{io, str::FromStr};

/// When a connection of a loop with a canned answer is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// By the client only.
    Never,
    /// After each answer, which says so.
    Always,
    /// After the answer to a request that asks for it, which says so.
    Asked,
}

impl FromStr for Closing {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<Closing> {
        match name {
            "" | "never" => Ok(Closing::Never),
            "close" => Ok(Closing::Always),
            "close-asked" => Ok(Closing::Asked),
            _ => Err(usage("PROGRAM PORT [never|close|close-asked]")),
        }
    }
}

/// The argument at `place`, counted from one, as what it should be.
///
/// # Errors
/// `usage`, when there is none or it is not a `T`.
pub fn argument<T: FromStr>(place: usize, usage_line: &str) -> io::Result<T> {
    let text = std::env::args().nth(place);
    let value = text.and_then(|text| text.parse().ok());
    value.ok_or_else(|| usage(usage_line))
}

/// When to close, from the second argument; without one, never.
///
/// # Errors
/// How to call the program, when it is another word.
pub fn closing() -> io::Result<Closing> {
    std::env::args().nth(2).unwrap_or_default().parse()
}

fn usage(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("usage: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_words_and_no_other() {
        let parse = |word: &str| word.parse::<Closing>().ok();
        assert_eq!(parse(""), Some(Closing::Never));
        assert_eq!(parse("close"), Some(Closing::Always));
        assert_eq!(parse("close-asked"), Some(Closing::Asked));
        assert_eq!(parse("closed"), None);
    }
}
