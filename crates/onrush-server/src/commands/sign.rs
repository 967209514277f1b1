//! `onrush sign`: prints a URL that gives the rights of a user for one path until a time.

use super::parse;
use crate::options::units::Time;
use crate::process::failure::{Failure, one_line, write_line};
use clap::{CommandFactory, Parser, ValueEnum};
use onrush_files::Users;
use onrush_files::access::{missing_right, sign_query};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Print a URL that works without logging in, until it expires
///
/// It gives the right to GET or PUT one path, as far as the user has it when the URL is used. To
/// revoke it, remove the user or change the password.
#[derive(Debug, Parser)]
#[command(name = "onrush sign")]
struct Arguments {
    /// The path of the object, or of a folder to list, or its URL; percent-encoded
    #[arg(value_name = "URL-PATH")]
    url: String,

    /// How long it is valid, such as 1h
    #[arg(long, value_name = "TIME")]
    expires: Time,

    /// What it permits; GET includes HEAD
    #[arg(long, value_name = "METHOD", default_value = "GET", ignore_case = true)]
    method: Method,

    /// The users file
    #[arg(long, value_name = "FILE", env = "ONRUSH_AUTH_FILE", hide_env = true)]
    auth_file: PathBuf,

    /// The user [default: the only one of the file]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Method {
    Get,
    Put,
}

/// The definition of its command line.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// The command `onrush sign`. `words` begin with `sign`.
pub(crate) fn main(words: &[OsString]) -> Result<(), Failure> {
    let Some(arguments) = parse::parse::<Arguments>(words, "onrush sign")? else {
        return Ok(());
    };
    let path = path_of(&arguments.url)?;
    let users = Users::read(&arguments.auth_file);
    let users = users.map_err(|error| Failure::usage(one_line(&error)))?;
    let name = match arguments.user {
        Some(name) => name,
        None if users.len() == 1 => users.all().map(|user| user.name().to_owned()).collect(),
        None => {
            return Err(Failure::usage(
                "write --user NAME: the file does not have exactly one user",
            ));
        }
    };
    let shown = one_line(&name);
    let key = users
        .signing_key(&name)
        .ok_or_else(|| match users.contains(&name) {
            true => Failure::usage(format!(
                "the user '{shown}' has no signing-key; onrush user passwd {shown} makes one"
            )),
            false => Failure::usage(format!("there is no user '{shown}' in the file")),
        })?;
    let method = match arguments.method {
        Method::Get => "GET",
        Method::Put => "PUT",
    };
    let expires = SystemTime::now() + arguments.expires.duration();
    let expires_s = expires
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let query = sign_query(key, &name, method, path, expires_s);
    let query = query.map_err(|error| Failure::usage(format!("{}: {error}", arguments.url)))?;
    if let Some(user) = users.all().find(|user| user.name() == name)
        && let Ok(Some(missing)) = missing_right(user.rights(), method, path)
    {
        write_line(&format!(
            "onrush: warning: the URL does not work now: '{shown}' lacks the right {missing} for \
             {path}"
        ));
    }
    println!("{}?{query}", arguments.url);
    Ok(())
}

/// The path of a URL or of a path.
fn path_of(url: &str) -> Result<&str, Failure> {
    let is_plain = |b: u8| matches!(b, b'!'..=b'~') && !b"\"<>\\^`{|}#?".contains(&b);
    if !url.bytes().all(is_plain) {
        return Err(Failure::usage(
            "write the path as in a URL, percent-encoded and without a query",
        ));
    }
    let rest = url.strip_prefix("https://").or(url.strip_prefix("http://"));
    let path = match rest {
        Some(rest) => rest.find('/').map(|at| &rest[at..]),
        None => Some(url),
    };
    path.filter(|path| path.starts_with('/'))
        .ok_or_else(|| Failure::usage("the path begins with a slash, as in /photos/a.jpg"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_url_or_a_path_is_accepted() {
        assert_eq!(path_of("/a/b%20c"), Ok("/a/b%20c"));
        assert_eq!(path_of("https://a.example:1/b/"), Ok("/b/"));
        for wrong in [
            "",
            "a",
            "https://a.example",
            "/a?b",
            "/a#b",
            "/a b",
            "/ä",
            "ftp://a/b",
        ] {
            assert!(path_of(wrong).is_err(), "{wrong}");
        }
    }
}
