//! The manual pages and completion scripts, made from the definitions of all command lines.

use crate::failure::{Failure, error_text};
use crate::{cli, health_command, sign_command, sweep, user_command};
use clap::{Arg, Command};
use clap_complete::Shell;
use std::path::Path;

/// The command line of the server with those of the other commands as its subcommands. It describes
/// them and does not parse: a folder may have any name, and `main` selects the command.
fn described() -> Command {
    let server = cli::command();
    let is_shared = |argument: &&Arg| {
        let id = argument.get_id().as_str();
        !["completions", "man", "version"].contains(&id)
    };
    let check = Command::new("check")
        .about("Print who may do what under a configuration")
        .long_about(
            "Print who may do what under a configuration.\n\nIt has the options of the server and \
             starts nothing.",
        )
        .args(server.get_arguments().filter(is_shared).cloned())
        .disable_help_flag(true);
    server
        .subcommands([
            check,
            health_command::command().name("health"),
            sign_command::command().name("sign"),
            sweep::command().name("sweep"),
            user_command::command().name("user"),
        ])
        .subcommand_help_heading("Commands")
        .subcommand_value_name("COMMAND")
        .disable_help_subcommand(true)
}

/// The completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut page = Vec::new();
    clap_complete::generate(shell, &mut described(), "onrush", &mut page);
    page
}

/// The manual page of the program.
pub(crate) fn manual() -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    // Writing to memory does not fail.
    clap_mangen::Man::new(described())
        .render(&mut page)
        .map_err(|error| Failure::run(error_text(&error)))?;
    Ok(page)
}

/// Writes the manual pages of the program and of all its commands into a folder, which must exist:
/// `onrush.1`, `onrush-user.1`, `onrush-user-add.1` and so on.
pub(crate) fn write_manuals(folder: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(described(), folder)
        .map_err(|error| Failure::run(format!("{}: {}", folder.display(), error_text(&error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_described_command_is_consistent() {
        described().debug_assert();
    }
}
