//! The command line: its flags, the messages for wrong usage, and the help. `config` interprets the
//! values.

use crate::config;
use crate::options::{ConfigFile, Options};
use crate::process::failure::{self, Failure};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, ValueHint};
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

/// Serves a folder over HTTP, to curl, browsers and build tools.
///
/// By default the folder is read-only, and the server can be reached only from this machine.
#[derive(Debug, Parser)]
#[command(name = "onrush", version, next_help_heading = "Other", after_help = EXAMPLE)]
#[command(after_long_help = MORE, disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Read options from a TOML file
    #[arg(short, long, env = "ONRUSH_CONFIG", value_name = "FILE")]
    #[arg(value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Print a completion script for a shell
    #[arg(long, value_name = "SHELL")]
    completions: Option<Shell>,

    /// Print the manual page, or write it and those of the commands into a folder
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "", value_hint = ValueHint::DirPath)]
    man: Option<OsString>,

    /// Print help (-h: a summary)
    #[arg(short, long, action = clap::ArgAction::Help)]
    help: Option<bool>,

    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

const EXAMPLE: &str = "\
Example:
  onrush ./data --allow put,delete        # creates ./data, serves it on http://127.0.0.1:8080
  curl -T photo.jpg http://127.0.0.1:8080/2024/photo.jpg

Commands, each with --help:
  onrush check, health, scrub, sign, sweep, user";

const MORE: &str = "\
Example:
  onrush ./data --allow put,delete        # creates ./data, serves it on http://127.0.0.1:8080
  curl -T photo.jpg http://127.0.0.1:8080/2024/photo.jpg
  curl http://127.0.0.1:8080/2024/photo.jpg

Options:
  An option can be given as a flag, as an environment variable, or in the TOML file of --config; the
  first of these that is present takes effect. --log-level has the variable ONRUSH_LOG_LEVEL and the
  key log-level; DIR has ONRUSH_DIR and dir. The table [types] (media types by extension) exists
  only in the file. The options under Other exist only as flags, but --config has ONRUSH_CONFIG. An
  example of a file:
      dir = \"/srv/data\"
      auth-file = \"/etc/onrush/users.toml\"
      bind = [\"0.0.0.0:8080\", \"unix:/run/onrush.sock\"]
      header-timeout = \"5s\"
      site = true
  TIME is a number with ms, s, m, h or d, such as 30s. SIZE is a number of bytes, or a number with
  KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024), or with KB, MB, GB, TB (powers of 1000). BOOL
  is true or false, yes or no, on or off, 1 or 0; in a file it is true, false, \"on\" or \"off\".
  The flag without a value means true.

Commands:
  onrush check has the options of the server and prints the rights of all clients. onrush user edits
  the file of --auth-file, onrush sign prints a URL that works without logging in, onrush sweep
  removes unfinished uploads from a bucket, onrush scrub verifies the checksums of a folder, and
  onrush health asks a running server whether it is ready. Each has --help. A folder with such a
  name is served as ./check.

Output:
  When the server is ready, it prints each address on a line of stdout. After them it prints, if
  there are any, addresses that redirect (redirect http://127.0.0.1:80), a separate admin address
  (admin http://127.0.0.1:9090/-/), and the fingerprint of a self-signed certificate (certificate
  sha256 AB:CD:…). The log goes to stderr.

Signals:
  On SIGTERM or SIGINT the server completes the requests in progress, for at most --drain-timeout,
  and exits; a second signal stops it at once. SIGHUP loads the file of --config, certificates and
  users again, and retries a failed order of --acme at once; without any of them it is logged and
  has no effect. SIGUSR2 restarts the program without a failed request. See docs/service.md.

Exit code:
  0 after a signal, even if the drain timeout ended requests. 1 on failure, and after a second
  signal. 2 on wrong usage, such as an invalid option, a broken certificate, or a host name that
  cannot be resolved.";

/// What to do, as the command line requests.
#[derive(Debug)]
pub(crate) enum Action {
    /// Serve with these options.
    Serve(Box<Options>),
    /// Print this page and exit.
    Print(Vec<u8>),
    /// Print the completion script for a shell.
    Completions(Shell),
    /// Print the manual page.
    Manual,
    /// Write the manual pages into this folder.
    Manuals(PathBuf),
}

/// The command line. One rule names all environment variables; the help states it once.
pub(crate) fn command() -> clap::Command {
    Arguments::command().mut_args(|argument| {
        let argument = argument.hide_env(true);
        let id = argument.get_id().as_str();
        match Options::ALL.iter().position(|option| option.name == id) {
            Some(index) => {
                let variable: &'static str = Box::leak(variable(id).into_boxed_str());
                // Positional arguments need the order as well.
                argument.env(variable).display_order(index)
            }
            None => argument,
        }
    })
}

/// The environment variable of an option.
fn variable(option: &str) -> String {
    format!("ONRUSH_{}", option.to_uppercase())
}

/// The variable that a process sets for the one that replaces it. It is no option.
pub(crate) const RESTART_VARIABLE: &str = "ONRUSH_RESTART";

/// The environment variables that begin with `ONRUSH_` but name no option. They are probably
/// misspelled.
pub(crate) fn unknown_variables() -> Vec<String> {
    let command = command();
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    let known: Vec<_> = variables.map(|name| name.to_string_lossy()).collect();
    let set = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let is_known = |name: &String| known.iter().any(|known| known == name);
    set.filter(|name| name.starts_with("ONRUSH_") && name != RESTART_VARIABLE && !is_known(name))
        .collect()
}

/// Whether the command line or the environment names a configuration file.
pub(crate) fn has_file(arguments: &[OsString]) -> bool {
    let matches = command().try_get_matches_from(arguments);
    matches.is_ok_and(|matches| matches.contains_id("config"))
}

/// Reads the command line, the environment and the configuration file.
pub(crate) fn read(arguments: Vec<OsString>) -> Result<Action, Failure> {
    let mut command = command();
    let matches = match command.try_get_matches_from_mut(&arguments) {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => {
            let text = error.render();
            // Only a terminal shows styles such as bold text.
            let shown = match std::io::IsTerminal::is_terminal(&io::stdout()) {
                true => text.ansi().to_string(),
                false => text.to_string(),
            };
            return Ok(Action::Print(shown.into_bytes()));
        }
        Err(error) => return Err(Failure::Usage(usage_message(&error, &command, &arguments))),
    };
    let read = Arguments::from_arg_matches(&matches)
        .map_err(|error| Failure::Usage(usage_message(&error, &command, &arguments)))?;
    if let Some(shell) = read.completions {
        return Ok(Action::Completions(shell));
    }
    match read.man {
        Some(folder) if folder.is_empty() => return Ok(Action::Manual),
        Some(folder) => return Ok(Action::Manuals(folder.into())),
        None => {}
    }
    let Some(path) = read.config else {
        return Ok(Action::Serve(Box::new(read.options)));
    };
    let file = config::read(&path)?;
    let config = ConfigFile {
        has_password: file.auth.is_some(),
        path,
    };
    let options = Options {
        config: Some(config),
        ..read.options.or(file)
    };
    Ok(Action::Serve(Box::new(options)))
}

/// Prints a page. It is not an error if the reader closes the pipe early.
pub(crate) fn print(page: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(page).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::run(format!(
            "cannot write to stdout: {}",
            failure::error_text(&error)
        ))),
        _ => Ok(()),
    }
}

/// The message of `error` in one line. It names the environment variable if the wrong value is from
/// one.
fn usage_message(error: &clap::Error, command: &clap::Command, arguments: &[OsString]) -> String {
    let text = error.render().to_string();
    let mut message = String::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if line.is_empty() {
            continue;
        }
        if !message.is_empty() {
            message.push_str(if line.starts_with('[') { " " } else { "; " });
        }
        message.push_str(line.trim_start_matches("error: "));
    }
    if let Some(flag) = flag_without_equals(error, command, arguments) {
        message = format!("{message}; write {flag}");
    }
    if let Some(variable) = source_variable(error, command, arguments) {
        message = format!("{message} (from {variable})");
    }
    message + " (see onrush --help)"
}

/// `--flag=value` if the unexpected argument is the value of a flag whose value may be omitted.
fn flag_without_equals(
    error: &clap::Error,
    command: &clap::Command,
    arguments: &[OsString],
) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let at = arguments.iter().position(|given| given == value.as_str())?;
    let before = arguments.get(at.checked_sub(1)?)?.to_str()?;
    let mut all = command.get_arguments();
    let has_equals = all.any(|argument| {
        let long = argument.get_long();
        argument.is_require_equals_set() && long == before.strip_prefix("--")
    });
    has_equals.then(|| format!("{before}={value}"))
}

/// The environment variable that an invalid value is from. `None` if it is from a flag: flags take
/// precedence.
fn source_variable(
    error: &clap::Error,
    command: &clap::Command,
    arguments: &[OsString],
) -> Option<String> {
    if !matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    ) {
        return None;
    }
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let argument = command
        .get_arguments()
        .find(|argument| argument.to_string() == *shown)?;
    let variable = argument.get_env()?.to_str()?;
    std::env::var_os(variable)?;
    let long = format!("--{}", argument.get_long()?);
    let short = argument.get_short().map(|short| format!("-{short}"));
    let is_flag = |given: &OsString| {
        let given = given.to_string_lossy();
        let is_short = short
            .as_ref()
            .is_some_and(|short| given.starts_with(short.as_str()));
        given.split('=').next() == Some(&long) || is_short
    };
    let flag_is_given = arguments.iter().skip(1).any(is_flag);
    (!flag_is_given).then(|| variable.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_words(words: &[&str]) -> Result<Action, Failure> {
        read(
            std::iter::once("onrush")
                .chain(words.iter().copied())
                .map(OsString::from)
                .collect(),
        )
    }

    fn options(words: &[&str]) -> Options {
        match read_words(words) {
            Ok(Action::Serve(options)) => *options,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn usage(words: &[&str]) -> String {
        match read_words(words) {
            Err(Failure::Usage(message)) => message,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn the_command_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_option_has_a_variable_named_after_it() {
        for argument in command().get_arguments() {
            let id = argument.get_id().as_str();
            if matches!(id, "completions" | "man" | "help" | "version") {
                continue;
            }
            let variable = argument.get_env().and_then(|name| name.to_str());
            assert_eq!(variable, Some(&*format!("ONRUSH_{}", id.to_uppercase())));
            assert!(
                id == "dir" || argument.get_long() == Some(&id.replace('_', "-")),
                "{id}"
            );
            assert!(argument.get_help_heading().is_some(), "{id} has no group");
        }
    }

    #[test]
    fn every_option_has_a_key_named_after_it() {
        for argument in Arguments::command().get_arguments() {
            let id = argument.get_id().as_str();
            let key = id.replace('_', "-");
            let (_, message) = config::parse(&format!("{key} = {{}}")).expect_err("not a table");
            let has_no_key = ["config", "completions", "man", "help", "version"].contains(&id);
            assert_eq!(
                message.starts_with("unknown key"),
                has_no_key,
                "{key}: {message}"
            );
        }
    }

    #[test]
    fn switches_take_a_value_only_after_an_equals_sign() {
        let read = options(&["--hidden", "folder", "--site=off", "--sink=true"]);
        assert_eq!(read.dir, Some(PathBuf::from("folder")));
        assert_eq!(
            (read.hidden, read.site, read.sink),
            (Some(true), Some(false), Some(true))
        );
    }

    #[test]
    fn a_list_is_split_at_commas() {
        use crate::options::values::Change::{Delete, Put};
        assert_eq!(
            options(&["--allow", "put,delete"]).allow,
            Some(vec![Put, Delete])
        );
        assert_eq!(options(&["--allow=delete"]).allow, Some(vec![Delete]));
    }

    #[test]
    fn usage_errors_are_one_line() {
        for words in [
            &["--prot", "1"][..],
            &["--port", "x"],
            &["--port"],
            &["--port", "1", "--port", "2"],
            &["a", "b"],
            &["--driver", "kqueue"],
            &["--placement", "here"],
            &["--allow", "post"],
            &["--header-timeout", "30"],
            &["--bind", "127.0.0.1:x"],
        ] {
            let message = usage(words);
            assert!(
                !message.contains('\n') && !message.starts_with("error"),
                "{message}"
            );
        }
        assert!(
            usage(&["--prot", "1"]).contains("'--port'"),
            "a similar flag is suggested"
        );
        let message = usage(&["data", "--hsts", "1h"]);
        assert!(message.contains("write --hsts=1h"), "{message}");
        assert!(usage(&["--driver", "x"]).contains("[possible values: auto, io_uring, epoll]"));
        assert!(usage(&["--header-timeout", "30"]).contains("write a unit, as in 30s"));
    }
}
