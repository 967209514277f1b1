//! The manual pages and completion scripts, made from the definitions of all command lines.

use super::{cli, health, sign, sweep, user};
use crate::process::failure::{Failure, error_text};
use clap::builder::Resettable;
use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::roff::{Roff, roman};
use std::io;
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
            health::command().name("health"),
            sign::command().name("sign"),
            sweep::command().name("sweep"),
            user::command().name("user"),
        ])
        .subcommand_help_heading("SEE ALSO")
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
    let mut command = described();
    command.build();
    // Writing to memory does not fail.
    page(command).map_err(|error| Failure::run(error_text(&error)))
}

/// Writes the manual pages of the program and of all its commands into a folder, which must exist:
/// `onrush.1`, `onrush-user.1`, `onrush-user-add.1` and so on.
pub(crate) fn write_manuals(folder: &Path) -> Result<(), Failure> {
    let mut command = described();
    // It gives the commands of commands their whole names.
    command.build();
    write_with_commands(command, folder)
        .map_err(|error| Failure::run(format!("{}: {}", folder.display(), error_text(&error))))
}

fn write_with_commands(command: Command, folder: &Path) -> io::Result<()> {
    for inner in command.get_subcommands() {
        // The help of help.
        if inner.get_name() != "help" {
            write_with_commands(inner.clone(), folder)?;
        }
    }
    let name = command.get_display_name().unwrap_or("onrush");
    std::fs::write(folder.join(format!("{name}.1")), page(command)?)
}

/// A manual page. What follows the options in the help are sections of their own.
fn page(mut command: Command) -> io::Result<Vec<u8>> {
    let after = command.get_after_long_help().map(ToString::to_string);
    command = command
        .after_help(Resettable::Reset)
        .after_long_help(Resettable::Reset);
    let source = concat!("onrush ", env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    let manual = clap_mangen::Man::new(command).source(source);
    manual.manual("Onrush").render(&mut page)?;
    sections(&after.unwrap_or_default()).to_writer(&mut page)?;
    Ok(page)
}

/// The sections of a text: `Heading:`, paragraphs with an indentation of two, and lines that are
/// kept as they are, which are further indented, or examples.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_example = false;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let indented = line.trim_start();
        match line.len() - indented.len() {
            0 => {
                is_example = line.starts_with("Example");
                let heading = line.trim_end_matches(':').to_uppercase();
                roff.control("SH", [heading.as_str()]);
            }
            2 if !is_example => {
                roff.text([roman(indented)]);
            }
            _ => {
                roff.control("nf", []);
                roff.text([roman(line)]);
                roff.control("fi", []);
            }
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_described_command_is_consistent() {
        described().debug_assert();
    }
}
