//! What the commands besides the server share: `onrush COMMAND …` with a command line of its own.
//!
//! A folder with the name of a command is served by `onrush ./COMMAND`.

use crate::process::failure::Failure;
use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;

/// Parses the arguments of a command, or prints its help. `None`: help was printed.
pub(crate) fn parse<A: Parser>(words: &[OsString], name: &str) -> Result<Option<A>, Failure> {
    // The first word would be the name in the usage.
    let mut command = A::command().bin_name(name);
    let parsed = command.try_get_matches_from_mut(words);
    match parsed.and_then(|matches| A::from_arg_matches(&matches)) {
        Ok(arguments) => Ok(Some(arguments)),
        Err(error) if !error.use_stderr() => {
            print!("{error}");
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let command = A::command();
            let names = command.get_subcommands().map(clap::Command::get_name);
            let names: Vec<_> = names.collect();
            Err(Failure::usage(format!(
                "write one of {} after {name} (see {name} --help)",
                names.join(", ")
            )))
        }
        Err(error) => {
            let text = error.to_string();
            let mut lines = text.lines().map(str::trim);
            let mut line = lines
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned();
            // Missing arguments are listed below the first line.
            for more in lines.take_while(|line| !line.is_empty()) {
                line = format!("{line} {more}");
            }
            Err(Failure::usage(format!("{line} (see {name} --help)")))
        }
    }
}
