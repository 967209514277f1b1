//! The arguments of the bare loops: first the port, then what differs between them.

use std::{io, str::FromStr};

/// When a loop with a fixed response closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Only when the client closes it.
    Never,
    /// After each response, which has `Connection: close`.
    Always,
    /// After the response to a request with `Connection: close`, which has the same field.
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

/// The argument at `place`, counted from one.
///
/// # Errors
/// It is missing, or it is not a `T`. The message contains `usage_line`.
pub fn argument<T: FromStr>(place: usize, usage_line: &str) -> io::Result<T> {
    let text = std::env::args().nth(place);
    let value = text.and_then(|text| text.parse().ok());
    value.ok_or_else(|| usage(usage_line))
}

/// When to close connections, from the second argument; [`Closing::Never`] without one.
///
/// # Errors
/// The argument is another word. The message states the usage.
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
    fn only_three_words_are_valid() {
        let parse = |word: &str| word.parse::<Closing>().ok();
        assert_eq!(parse(""), Some(Closing::Never));
        assert_eq!(parse("close"), Some(Closing::Always));
        assert_eq!(parse("close-asked"), Some(Closing::Asked));
        assert_eq!(parse("closed"), None);
    }
}
