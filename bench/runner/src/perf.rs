//! CPU profiles: perf samples the servers' core while both servers of a pair are loaded. The table
//! has the time of each function per request, for both servers side by side.

use crate::{
    bench::Bench,
    pair,
    plan::{Pairing, Scenario},
    server::{CLIENT_CORE, SERVER_CORE, Server, pinned},
};
use std::{collections::HashMap, fmt::Write, path::Path, process::Command};
use xtask::shell::{Outcome, capture, shown};

/// Duration and rate of the sampling. A timer takes the samples, because rented machines have no
/// hardware counters.
const SECONDS: u64 = 10;
const SAMPLES_PER_S: u32 = 4000;

/// Number of functions in the table. Those with the largest difference come first.
const FUNCTIONS_MAX: usize = 40;

/// Longer names are cut in the table.
const NAME_MAX: usize = 90;

/// The place of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    kernel: bool,
    function: String,
}

/// Samples of one server.
type Samples = HashMap<Place, u64>;

/// Loads both servers and returns the table.
pub(crate) fn sample(bench: &mut Bench, scenario: &Scenario, pairing: &Pairing) -> Outcome<String> {
    let file = bench.setup.target.join("bench/perf.data");
    let watched = pair::watch(bench, scenario, pairing, SECONDS, |server, reference| {
        let of = [server, reference].map(Server::processes);
        record(&file)?;
        Ok(of)
    });
    let read = watched.and_then(|(processes, per_s)| Ok((script(&file)?, processes, per_s)));
    let _ = std::fs::remove_file(&file);
    let (text, processes, per_s) = read?;
    let samples = processes.map(|processes| samples(&text, &processes));
    let names = [&pairing.server.label, &pairing.reference.label].map(String::as_str);
    let times = [0, 1].map(|at| per_request(&samples[at], per_s[at]));
    let title = format!(
        "{} · {}: ns per request; {:.0} and {:.0} requests/s",
        scenario.profile, scenario.name, per_s[0], per_s[1]
    );
    Ok(format!("{title}\n{}", table(names, &times)))
}

fn record(file: &Path) -> Outcome {
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-C", SERVER_CORE, "-F"]);
    perf.arg(SAMPLES_PER_S.to_string()).arg("-o").arg(file);
    perf.args(["--", "sleep", &SECONDS.to_string()]);
    printed(&mut pinned(&perf, CLIENT_CORE)).map(drop)
}

fn script(file: &Path) -> Outcome<String> {
    let mut perf = Command::new("perf");
    perf.arg("script").arg("-i").arg(file);
    perf.args(["-F", "pid,ip,sym,dso"]);
    printed(&mut perf)
}

/// The output of a command. Fails if the command fails.
fn printed(command: &mut Command) -> Outcome<String> {
    match capture(command)? {
        (true, text) => Ok(text),
        (false, text) => Err(format!("`{}`: {}", shown(command), text.trim())),
    }
}

/// The samples of `processes` in the output of `perf script`: ` 123  ffff81 name+0 (file)`.
fn samples(text: &str, processes: &[u32]) -> Samples {
    let mut samples = Samples::new();
    for line in text.lines() {
        if let Some((process, place)) = place(line)
            && processes.contains(&process)
        {
            *samples.entry(place).or_default() += 1;
        }
    }
    samples
}

fn place(line: &str) -> Option<(u32, Place)> {
    let (process, rest) = line.trim().split_once(char::is_whitespace)?;
    let (address, rest) = rest.trim().split_once(' ')?;
    let (function, file) = rest.rsplit_once(" (")?;
    let file = file.trim_end_matches(')').rsplit('/').next()?;
    let function = match function.trim() {
        "[unknown]" => format!("in {file}"),
        name => without_hash(name).to_owned(),
    };
    let kernel = address.len() == 16 && address.starts_with("ffff");
    Some((process.parse().ok()?, Place { kernel, function }))
}

/// A Rust name without the `::h` and 16 digits that rustc appends.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash))
            if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            name
        }
        _ => name,
    }
}

/// Nanoseconds per request at each place, for a server with `per_s` responses per second.
fn per_request(samples: &Samples, per_s: f64) -> HashMap<Place, f64> {
    let requests = per_s * SECONDS as f64;
    let ns = 1e9 / f64::from(SAMPLES_PER_S) / requests;
    let each = samples.iter();
    each.map(|(place, count)| (place.clone(), *count as f64 * ns))
        .collect()
}

fn table(names: [&str; 2], times: &[HashMap<Place, f64>; 2]) -> String {
    let wide = names.map(|name| name.len().max(8));
    let mut text = format!(
        "{:>w0$}  {:>w1$}  difference\n",
        names[0],
        names[1],
        w0 = wide[0],
        w1 = wide[1]
    );
    let mut line = |of: [f64; 2], what: &str| {
        let what: String = what.chars().take(NAME_MAX).collect();
        let _ = writeln!(
            text,
            "{:>w0$.0}  {:>w1$.0}  {:>+10.0}  {what}",
            of[0],
            of[1],
            of[0] - of[1],
            w0 = wide[0],
            w1 = wide[1]
        );
    };
    for (kernel, what) in [(false, "all of the program"), (true, "all of the kernel")] {
        let of = |times: &HashMap<Place, f64>| {
            let here = times.iter().filter(|(place, _)| place.kernel == kernel);
            here.fold(0.0, |sum, (_, ns)| sum + ns)
        };
        line([of(&times[0]), of(&times[1])], what);
    }
    let mut places: Vec<&Place> = times[0].keys().chain(times[1].keys()).collect();
    places.sort();
    places.dedup();
    let of = |place: &Place| [0, 1].map(|at| times[at].get(place).copied().unwrap_or(0.0));
    let difference = |place: &Place| {
        let [one, other] = of(place);
        (one - other).abs()
    };
    places.sort_by(|a, b| difference(b).total_cmp(&difference(a)));
    for place in places.into_iter().take(FUNCTIONS_MAX) {
        let what = match place.kernel {
            true => format!("kernel   {}", place.function),
            false => format!("program  {}", place.function),
        };
        line(of(place), &what);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "
  71  ffffffff81a0b6d4 tcp_ack ([kernel.kallsyms])
  71  ffffffff81a0b6d4 tcp_ack ([kernel.kallsyms])
  71      55d1c0de1234 <a::B as c::D>::poll::h0123456789abcdef (/opt/x/server)
  72      7f0000001000 [unknown] (/usr/lib/libc.so.6)
  99      55d1c0de1234 other::main (/opt/x/other)
nonsense
";

    fn at(kernel: bool, function: &str) -> Place {
        Place {
            kernel,
            function: function.to_owned(),
        }
    }

    #[test]
    fn samples_are_divided_by_process_and_function() {
        let found = samples(SCRIPT, &[71, 72]);
        let expected = [
            (at(true, "tcp_ack"), 2),
            (at(false, "<a::B as c::D>::poll"), 1),
            (at(false, "in libc.so.6"), 1),
        ];
        assert_eq!(found, expected.into_iter().collect());
        assert!(samples(SCRIPT, &[1]).is_empty());
        assert_eq!(without_hash("a::hello"), "a::hello");
    }

    #[test]
    fn the_largest_difference_comes_first() {
        let one = per_request(&samples(SCRIPT, &[71]), 0.025);
        assert_eq!(one[&at(true, "tcp_ack")], 2e6);
        let other = per_request(&samples(SCRIPT, &[72]), 0.025);
        let text = table(["one", "the other"], &[one, other]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["one", "the", "other", "difference"]);
        let program = ["1000000", "1000000", "+0", "all", "of", "the", "program"];
        assert_eq!(lines[1], program);
        assert_eq!(lines[2][..3], ["2000000", "0", "+2000000"]);
        assert_eq!(lines[3][3..], ["kernel", "tcp_ack"]);
        assert_eq!(lines.len(), 6);
    }
}
