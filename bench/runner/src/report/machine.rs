//! The description of the machine and of the runs, without the machine's name.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Instant};
use xtask::shell::{Outcome, capture, elapsed, field_kib};

/// State at the beginning of a run.
pub struct Machine {
    begun: Instant,
    before: Option<Times>,
    /// The date of the beginning, such as 2026-01-31.
    pub date: String,
}

/// CPU time of all cores since the system started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    all: u64,
    stolen: u64,
}

impl Machine {
    /// Records the beginning of a run.
    pub fn now() -> Machine {
        Machine {
            begun: Instant::now(),
            before: times(&read("/proc/stat")),
            date: said("date", &["-u", "+%F"]),
        }
    }

    /// Writes the machine, the run of `profile` and the versions of the servers to `file`. The
    /// file's entries of other profiles and servers are kept, in the section of their machine.
    pub fn write(
        &self,
        file: &Path,
        profile: &str,
        line: &str,
        versions: &[(String, String)],
    ) -> Outcome {
        let stolen = self.before.zip(times(&read("/proc/stat")));
        let stolen = stolen.map_or_else(String::new, |(before, after)| share(before, after));
        let took = elapsed(self.begun.elapsed());
        let run = format!("{} | {took} | {stolen} | `{line}`", self.date);
        let text = page(
            &machine(),
            &fs::read_to_string(file).unwrap_or_default(),
            (profile.to_owned(), run),
            versions,
        );
        fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

/// The beginning of a machine's section.
fn machine() -> String {
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
    format!(
        "{SECTION}{model}, {cores} cores\n\n\
         | | |\n| --- | --- |\n| memory | {:.1} GiB |\n| kernel | {} {} |\n\
         | compiler | {} |\n| load generator | {} |\n",
        kib as f64 / 1_048_576.0,
        said("uname", &["-s", "-r"]),
        said("uname", &["-m"]),
        said("rustc", &["--version"]),
        said("wrk", &["--version"]),
    )
}

const TITLE: &str = "# Machines and runs of these results\n";
const SECTION: &str = "\n## ";
/// The heads of the tables of runs and of servers.
const RUNS: &str = "\n\
    | profile | date | duration, with earlier profiles of the run | CPU time stolen | arguments |\n\
    | --- | --- | --- | --- | --- |\n";
const SERVERS: &str = "\n| server | version |\n| --- | --- |\n";

/// The runs on one machine, and the versions of the servers.
#[derive(Default)]
struct Section {
    runs: BTreeMap<String, String>,
    servers: BTreeMap<String, String>,
}

impl Section {
    fn read(text: &str) -> Section {
        Section {
            runs: table(text, RUNS),
            servers: table(text, SERVERS),
        }
    }

    /// Adds the entries of another section of the same machine. Of two runs of a profile the later
    /// one stays: a run begins with its date.
    fn add(&mut self, other: Section) {
        for (profile, run) in other.runs {
            let known = self.runs.entry(profile).or_default();
            *known = run.max(std::mem::take(known));
        }
        self.servers.extend(other.servers);
    }

    fn text(&self, machine: &str) -> String {
        let lines = |rows: &BTreeMap<String, String>| -> String {
            let line = |(name, rest)| format!("| {name} | {rest} |\n");
            rows.iter().map(line).collect()
        };
        let mut text = format!("{machine}{RUNS}{}", lines(&self.runs));
        if !self.servers.is_empty() {
            text += &format!("{SERVERS}{}", lines(&self.servers));
        }
        text
    }
}

/// Updates the page `before`. The run replaces that of the same profile on any machine. A section
/// without runs is removed.
fn page(
    machine: &str,
    before: &str,
    (profile, run): (String, String),
    versions: &[(String, String)],
) -> String {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    for text in before.split(SECTION).skip(1) {
        let whose = text.split(RUNS).next().unwrap_or_default();
        let section = sections.entry(format!("{SECTION}{whose}")).or_default();
        section.add(Section::read(text));
    }
    for section in sections.values_mut() {
        section.runs.remove(&profile);
    }
    let section = sections.entry(machine.to_owned()).or_default();
    section.runs.insert(profile, run);
    for (name, version) in versions {
        let version = version.replace(['|', '\n'], " ");
        section.servers.insert(name.clone(), version);
    }
    sections.retain(|_, section| !section.runs.is_empty());
    let sections = sections.iter().map(|(whose, section)| section.text(whose));
    TITLE.to_owned() + &sections.collect::<String>()
}

/// The rows below a table's head: the first cell, and the rest.
fn table(text: &str, heading: &str) -> BTreeMap<String, String> {
    let rows = text.split_once(heading).map_or("", |(_, rows)| rows);
    rows.lines()
        .map_while(|line| {
            line.strip_prefix("| ")?
                .strip_suffix(" |")?
                .split_once(" | ")
        })
        .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
        .collect()
}

/// The first line that a program prints, or an empty text. Some programs exit with an error even
/// after `--version`.
fn said(program: &str, arguments: &[&str]) -> String {
    let text = capture(Command::new(program).args(arguments)).map(|(_, text)| text);
    let text = text.unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    // The line of wrk ends with its author.
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

/// Parses the line of all cores (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal,
/// and guest times, which user and nice include.
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
    fn the_page_keeps_the_entries_of_other_runs() {
        let row = |name: &str, rest: &str| (name.to_owned(), rest.to_owned());
        let versions = [row("nginx", "1.2|3"), row("go", "1")];
        let (m, n) = ("\n## m\n\nfacts\n", "\n## n\n\nfacts\n");
        let first = page(m, "", row("put", "a | b"), &versions);
        let runs = "| put | a | b |\n";
        let servers = "| go | 1 |\n| nginx | 1.2 3 |\n";
        let whole = format!("{TITLE}{m}{RUNS}{runs}{SERVERS}{servers}");
        assert_eq!(first, whole);
        let second = page(m, &first, row("get", "c | d"), &[row("go", "2")]);
        let runs = "| get | c | d |\n| put | a | b |\n";
        let servers = "| go | 2 |\n| nginx | 1.2 3 |\n";
        let m_whole = format!("{m}{RUNS}{runs}{SERVERS}{servers}");
        assert_eq!(second, format!("{TITLE}{m_whole}"));
        // Another machine has its own section. A repeated profile leaves the first machine's
        // section.
        let third = page(n, &second, row("tail", "e | f"), &[]);
        let n_whole = format!("{n}{RUNS}| tail | e | f |\n");
        assert_eq!(third, format!("{TITLE}{m_whole}{n_whole}"));
        let fourth = page(n, &third, row("get", "g | h"), &[]);
        let m_whole = format!("{m}{RUNS}| put | a | b |\n{SERVERS}{servers}");
        let n_whole = format!("{n}{RUNS}| get | g | h |\n| tail | e | f |\n");
        assert_eq!(fourth, format!("{TITLE}{m_whole}{n_whole}"));
        let last = page(n, &fourth, row("put", "i | j"), &[]);
        let n_whole = n_whole.replace("| tail", "| put | i | j |\n| tail");
        assert_eq!(last, format!("{TITLE}{n_whole}"));
    }

    #[test]
    fn sections_of_the_same_machine_become_one() {
        let row = |name: &str, rest: &str| (name.to_owned(), rest.to_owned());
        let m = "\n## m\n\nfacts\n";
        let section = |runs: &str, servers: &str| format!("{m}{RUNS}{runs}{SERVERS}{servers}");
        let old = "| get | 2026-01-02 | a |\n| put | 2026-01-01 | b |\n";
        let new = "| put | 2026-01-03 | c |\n| scale | 2026-01-03 | d |\n";
        let whole = section(
            "| get | 2026-01-02 | a |\n| put | 2026-01-03 | c |\n| scale | 2026-01-03 | d |\n\
             | tail | 2026-01-04 | e |\n",
            "| go | 1 |\n| nginx | 2 |\n",
        );
        let servers = ["| go | 1 |\n", "| nginx | 2 |\n"];
        for [first, second] in [[old, new], [new, old]] {
            let twice = section(first, servers[0]) + &section(second, servers[1]);
            let run = row("tail", "2026-01-04 | e");
            let one = page(m, &(TITLE.to_owned() + &twice), run, &[]);
            assert_eq!(one, format!("{TITLE}{whole}"));
        }
    }

    #[test]
    fn the_machine_is_described() {
        assert!(machine().contains(" cores\n"), "{}", machine());
    }
}
