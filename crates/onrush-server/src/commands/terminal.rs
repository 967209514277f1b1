//! Reading a password: from the terminal without showing it, or from stdin. Never from the command
//! line, which other programs can read.

use crate::process::failure::{Failure, error_text};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};

/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// Asks for a password twice on the terminal, or reads the first line of stdin if that is no
/// terminal.
pub(crate) fn read_password(user: &str) -> Result<String, Failure> {
    let fail = |error: io::Error| {
        Failure::run(format!(
            "the password cannot be read: {}",
            error_text(&error)
        ))
    };
    if !io::stdin().is_terminal() {
        return read_line(&mut io::stdin().lock()).map_err(fail);
    }
    let mut terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .map_err(fail)?;
    let first = ask(&mut terminal, &format!("Password of {user}: ")).map_err(fail)?;
    let second = ask(&mut terminal, "The same again: ").map_err(fail)?;
    match first == second {
        true => Ok(first),
        false => Err(Failure::run(
            "the two passwords differ; nothing was changed",
        )),
    }
}

/// Restores the settings of a terminal.
struct Silence<'t> {
    terminal: &'t File,
    before: Termios,
}

impl Silence<'_> {
    fn begin(terminal: &File) -> io::Result<Silence<'_>> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(Silence { terminal, before })
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

fn ask(terminal: &mut File, prompt: &str) -> io::Result<String> {
    terminal.write_all(prompt.as_bytes())?;
    let terminal = &*terminal;
    let _silence = Silence::begin(terminal)?;
    read_line(&mut BufReader::with_capacity(1, terminal))
}

/// A line without its end.
fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(LINE_BYTES_MAX).read_line(&mut line)?;
    if let Some(text) = line.strip_suffix('\n') {
        line.truncate(text.strip_suffix('\r').unwrap_or(text).len());
    }
    Ok(line)
}
