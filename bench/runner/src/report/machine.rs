//! What a run was made on, without anything that names the machine. Must not know rows.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};
use xtask::shell::{Outcome, capture, elapsed, field_kib};

/// Taken at the beginning; the end makes it whole.
pub(crate) struct Machine {
    begun: Instant,
    before: Option<Times>,
    pub(crate) date: String,
}

/// Of all cores, in ticks since they came up.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    all: u64,
    stolen: u64,
}

impl Machine {
    pub(crate) fn now() -> Machine {
        Machine {
            begun: Instant::now(),
            before: times(&read("/proc/stat")),
            date: said("date", &["-u", "+%F"]),
        }
    }

    /// Writes `file` with what took part: names and versions.
    pub(crate) fn write(&self, file: &Path, line: &str, versions: &[(String, String)]) -> Outcome {
        let stolen = self.before.zip(times(&read("/proc/stat")));
        let stolen = stolen.map_or_else(String::new, |(before, after)| share(before, after));
        let text = page(&Page {
            date: &self.date,
            line,
            took: self.begun.elapsed(),
            stolen: &stolen,
            versions,
        });
        fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

struct Page<'p> {
    date: &'p str,
    line: &'p str,
    took: Duration,
    stolen: &'p str,
    versions: &'p [(String, String)],
}

fn page(page: &Page<'_>) -> String {
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model
        .unwrap_or_default()
        .trim_start_matches([' ', '\t', ':']);
    let cores = cpu
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let kib = field_kib(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0);
    let mut text = format!(
        "# What this was measured on\n\n\
         | | |\n| --- | --- |\n\
         | date | {} |\n| arguments | `{}` |\n| took | {} |\n\
         | CPU | {model}, {cores} cores |\n| memory | {:.1} GiB |\n| kernel | {} {} |\n\
         | CPU time stolen meanwhile | {} |\n| compiler | {} |\n| load | {} |\n\n\
         | server | version |\n| --- | --- |\n",
        page.date,
        page.line,
        elapsed(page.took),
        kib as f64 / 1_048_576.0,
        said("uname", &["-s", "-r"]),
        said("uname", &["-m"]),
        page.stolen,
        said("rustc", &["--version"]),
        said("wrk", &["--version"]),
    );
    for (name, version) in page.versions {
        text.push_str(&format!(
            "| {name} | {} |\n",
            version.replace(['|', '\n'], " ")
        ));
    }
    text
}

/// The first line a program prints, or nothing. What some say even to `--version` comes with an
/// error.
fn said(program: &str, arguments: &[&str]) -> String {
    let text = capture(Command::new(program).args(arguments)).map(|(_, text)| text);
    let text = text.unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    // wrk goes on with its author.
    first
        .split(" Copyright")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// From the line of all cores: user, nice, system, idle, iowait, irq, softirq, steal, and guests,
/// which are in user and nice already.
fn times(stat: &str) -> Option<Times> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(Times {
        all: fields.iter().sum(),
        stolen: *fields.get(7)?,
    })
}

fn share(before: Times, after: Times) -> String {
    let all = after.all.saturating_sub(before.all).max(1);
    let stolen = after.stolen.saturating_sub(before.stolen);
    format!("{:.1} %", stolen as f64 * 100.0 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let before = times("cpu  10 0 10 70 0 0 0 10 5 5\ncpu0 1\n").expect("a line");
        assert_eq!((before.all, before.stolen), (100, 10));
        let after = Times {
            all: 300,
            stolen: 60,
        };
        assert_eq!(share(before, after), "25.0 %");
        assert_eq!(times("cpu0 1 2 3"), None);
    }

    #[test]
    fn the_page_has_a_line_for_each_server() {
        let text = page(&Page {
            date: "2026-01-01",
            line: "plaintext",
            took: Duration::from_secs(60),
            stolen: "1.0 %",
            versions: &[("nginx".to_owned(), "1.2|3".to_owned())],
        });
        assert!(text.contains("| nginx | 1.2 3 |\n"), "{text}");
        assert!(text.contains(" cores |\n"), "{text}");
    }
}
