//! `onrush scrub`: verifies the checksums of the objects in a folder.

use super::parse;
use crate::options::units::SizeMax;
use crate::process::failure::{Failure, error_text, one_line};
use clap::Parser;
use onrush_rt::fs::Dir;
use onrush_store::cache::is_cache;
use onrush_store::{Finding, Scrub};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// How often the progress is shown on a terminal, and in lines.
const SHOW_EVERY: Duration = Duration::from_millis(250);
const LOG_EVERY: Duration = Duration::from_secs(30);

/// The bytes between two looks at the clock.
const PACE_BYTES: u64 = 1 << 20;

/// Verify the checksums of all objects in a folder
///
/// It reads every file from the disk, beside a running server. It names on stdout what is damaged
/// or unreadable, what has no checksum, and what another program has changed since it was stored.
/// The progress goes to stderr. Exit code: 0 if nothing is damaged or unreadable, otherwise 1; 2 on
/// wrong usage.
#[derive(Debug, Parser)]
#[command(name = "onrush scrub")]
struct Arguments {
    /// The folder that the server serves
    dir: PathBuf,

    /// The most bytes to read per second; off means no limit
    #[arg(long, value_name = "SIZE", default_value = "100MiB")]
    rate: SizeMax,

    /// Print one JSON object per file that is named, and one with the counts at the end
    #[arg(long)]
    json: bool,
}

/// The command `onrush scrub`. `words` begin with `scrub`.
pub(crate) fn main(words: &[OsString]) -> Result<(), Failure> {
    let Some(arguments) = parse::parse::<Arguments>(words, "onrush scrub")? else {
        return Ok(());
    };
    if arguments.rate.bytes == 0 {
        return Err(Failure::usage("--rate: write at least 1, or off"));
    }
    let root = Dir::open_root(&arguments.dir).map_err(|error| {
        let (dir, error) = (arguments.dir.display(), error_text(&error));
        Failure::run(format!("{dir} cannot be read: {error}"))
    })?;
    if is_cache(&arguments.dir) {
        let dir = arguments.dir.display();
        return Err(Failure::usage(format!(
            "{dir} is a cache, which verifies its files itself when it reads them"
        )));
    }
    let scrub = Scrub::new(root);
    let mut run = Run::new(&scrub, arguments.rate.bytes, arguments.json);
    scrub.files(&mut |path, read| {
        let finding = match read {
            Ok(()) => scrub.verify(path, &mut |bytes| run.pace(bytes)),
            Err(error) => Finding::Unreadable((&error).into()),
        };
        match run.report(path, finding) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                run.output_error = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    run.end()
}

/// The numbers of files by what was found.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    intact: u64,
    damaged: u64,
    unreadable: u64,
    changed: u64,
    without: u64,
}

struct Run {
    /// The bytes of all files when this began.
    total_bytes: u64,
    bytes_per_s: u64,
    json: bool,
    on_terminal: bool,
    begun: Instant,
    shown: Instant,
    read_bytes: u64,
    /// At the last look at the clock.
    paced_bytes: u64,
    counts: Counts,
    /// Stdout does not accept more.
    output_error: Option<io::Error>,
}

impl Run {
    fn new(scrub: &Scrub, bytes_per_s: u64, json: bool) -> Run {
        let mut total_bytes = 0;
        scrub.files(&mut |path, read| {
            total_bytes += read.map_or(0, |()| scrub.size(path));
            ControlFlow::Continue(())
        });
        let now = Instant::now();
        Run {
            total_bytes,
            bytes_per_s,
            json,
            on_terminal: io::stderr().is_terminal(),
            begun: now,
            shown: now,
            read_bytes: 0,
            paced_bytes: 0,
            counts: Counts::default(),
            output_error: None,
        }
    }

    /// Waits until `bytes` more may have been read.
    fn pace(&mut self, bytes: u64) {
        self.read_bytes += bytes;
        if self.read_bytes - self.paced_bytes < PACE_BYTES.min(self.bytes_per_s / 16) {
            return;
        }
        self.paced_bytes = self.read_bytes;
        if self.bytes_per_s != u64::MAX {
            let due = Duration::from_secs_f64(self.read_bytes as f64 / self.bytes_per_s as f64);
            thread::sleep(due.saturating_sub(self.begun.elapsed()));
        }
        self.show();
    }

    /// Shows the progress, if it is time.
    fn show(&mut self) {
        let every = match self.on_terminal {
            true => SHOW_EVERY,
            false => LOG_EVERY,
        };
        if self.shown.elapsed() < every {
            return;
        }
        self.shown = Instant::now();
        let text = progress(self.read_bytes, self.total_bytes, self.begun.elapsed());
        let bad = self.counts.damaged + self.counts.unreadable;
        let line = match self.on_terminal {
            true => format!("\r{text}, {bad} damaged\x1b[K"),
            false => format!("{text}, {bad} damaged\n"),
        };
        let _ = io::stderr().write_all(line.as_bytes());
    }

    /// Counts a finding, and names the file if it is not intact.
    fn report(&mut self, path: &[u8], finding: Finding) -> io::Result<()> {
        let counts = &mut self.counts;
        let (count, state) = match finding {
            Finding::Gone => return Ok(()),
            Finding::Intact => (&mut counts.intact, None),
            Finding::Damaged(..) => (&mut counts.damaged, Some("damaged")),
            Finding::Unreadable(_) => (&mut counts.unreadable, Some("unreadable")),
            Finding::Changed => (&mut counts.changed, Some("changed")),
            Finding::NoChecksum => (&mut counts.without, Some("no checksum")),
        };
        *count += 1;
        let Some(state) = state else { return Ok(()) };
        self.clear_line();
        let path = String::from_utf8_lossy(path);
        let line = match (self.json, finding) {
            (true, Finding::Damaged(stored, read)) => serde_json::json!({
                "path": path, "state": state,
                "stored": format!("{stored:016x}"), "read": format!("{read:016x}"),
            })
            .to_string(),
            (true, Finding::Unreadable(cause)) => {
                serde_json::json!({"path": path, "state": state, "cause": cause.to_string()})
                    .to_string()
            }
            (true, _) => serde_json::json!({"path": path, "state": state}).to_string(),
            (false, Finding::Unreadable(cause)) => {
                format!("{state}: {} ({cause})", one_line(&path))
            }
            (false, _) => format!("{state}: {}", one_line(&path)),
        };
        writeln!(io::stdout(), "{line}")
    }

    fn clear_line(&self) {
        if self.on_terminal {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }

    fn end(self) -> Result<(), Failure> {
        self.clear_line();
        let Counts {
            intact,
            damaged,
            unreadable,
            changed,
            without,
        } = self.counts;
        let bytes = self.read_bytes;
        let line = match self.json {
            true => serde_json::json!({
                "intact": intact, "damaged": damaged, "unreadable": unreadable,
                "changed": changed, "no_checksum": without, "read_bytes": bytes,
            })
            .to_string(),
            false => format!(
                "{intact} intact, {damaged} damaged, {unreadable} unreadable, {changed} changed by \
                 other programs, {without} without a checksum; {} read",
                size_text(bytes)
            ),
        };
        let failed =
            |error| Failure::run(format!("cannot write to stdout: {}", error_text(&error)));
        if let Some(error) = self.output_error {
            return Err(failed(error));
        }
        writeln!(io::stdout(), "{line}").map_err(failed)?;
        match damaged + unreadable {
            0 => Ok(()),
            1 => Err(Failure::run("1 file is damaged or unreadable")),
            bad => Err(Failure::run(format!(
                "{bad} files are damaged or unreadable"
            ))),
        }
    }
}

/// `43 %, 12.3 GiB of 28.1 GiB, 100.0 MiB/s, 162 s left`.
fn progress(read: u64, total: u64, elapsed: Duration) -> String {
    let rate = read as f64 / elapsed.as_secs_f64().max(0.001);
    let left = total.saturating_sub(read);
    let percent = (read.min(total) * 100).checked_div(total).unwrap_or(100);
    format!(
        "{percent} %, {} of {}, {}/s, {:.0} s left",
        size_text(read),
        size_text(total),
        size_text(rate as u64),
        left as f64 / rate.max(1.0)
    )
}

/// Bytes with a unit (by 1024).
fn size_text(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64 / 1024.0;
    let mut unit = units[0];
    for next in &units[1..] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    match bytes < 1024 {
        true => format!("{bytes} B"),
        false => format!("{value:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_left() {
        let text = progress(512 << 20, 1 << 30, Duration::from_secs(8));
        assert_eq!(text, "50 %, 512.0 MiB of 1.0 GiB, 64.0 MiB/s, 8 s left");
        let empty = progress(0, 0, Duration::ZERO);
        assert_eq!(empty, "100 %, 0 B of 0 B, 0 B/s, 0 s left");
        assert!(
            progress(9, 5, Duration::from_secs(1)).starts_with("100 %"),
            "files have grown"
        );
    }
}
