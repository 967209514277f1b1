//! The cases of Autobahn (fragments, control frames, reserved bits, invalid UTF-8, closing codes,
//! large messages) have the same verdicts on both servers. They need kosoku, which runs them
//! without Python 2.

use crate::apps;
use crate::same::serve;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testing::programs::{output_within, tool};

/// How often a case that differs runs again.
const REPEATED_MAX: u32 = 10;

/// Runs the cases that `patterns` select. Returns a line for each, or `None` without the program.
fn verdicts(address: SocketAddr, patterns: &[&str]) -> Option<Vec<String>> {
    let python = tool("python/kosoku/bin/python", "cargo xtask setup")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/autobahn.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("ws://{address}/"));
    command.args(patterns);
    let output = output_within(&mut command, Duration::from_secs(180));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8_lossy(&output.stdout);
    Some(lines.lines().map(str::to_owned).collect())
}

/// At least `cases` cases have the same verdicts everywhere, and no server violates the protocol.
///
/// Some cases send more than a server reads before it closes. Then the kernel resets the
/// connection, and on each server the reset sometimes overtakes what was said to close. So the
/// cases that differ run again, on both servers.
fn compare(patterns: &[&str], cases: usize) {
    let both = serve(apps::echo);
    let Some(expected) = verdicts(both.axum, patterns) else {
        return;
    };
    assert!(expected.len() >= cases, "{}", expected.len());
    for line in &expected {
        let behavior = line.split("; ").nth(1);
        let is_good = matches!(behavior, Some("OK" | "NON-STRICT" | "INFORMATIONAL"));
        assert!(is_good, "{line}");
    }
    for (driver, address) in &both.onrush {
        let ours = |patterns: &[&str]| verdicts(*address, patterns).expect("it is installed");
        let mut differ = differences(expected.clone(), ours(patterns));
        for _ in 0..REPEATED_MAX {
            if differ.is_empty() {
                break;
            }
            let cases: Vec<&str> = differ.iter().map(|(line, _)| case(line)).collect();
            let theirs = verdicts(both.axum, &cases).expect("it is installed");
            differ = differences(theirs, ours(&cases));
        }
        assert!(differ.is_empty(), "{driver}: {differ:?}");
    }
}

/// The lines of cases that differ.
fn differences(theirs: Vec<String>, ours: Vec<String>) -> Vec<(String, String)> {
    let cases = |lines: &[String]| lines.iter().map(|line| case(line).to_owned()).collect();
    let (all, same): (Vec<String>, Vec<String>) = (cases(&theirs), cases(&ours));
    assert_eq!(all, same);
    let both = theirs.into_iter().zip(ours);
    both.filter(|(theirs, ours)| theirs != ours).collect()
}

/// The number of a case, from its line.
fn case(line: &str) -> &str {
    line.split("; ").next().unwrap_or(line)
}

#[test]
fn cases_of_each_group_have_the_same_verdicts() {
    let _dog = testing::watchdog("cases_of_each_group_have_the_same_verdicts");
    let patterns = [
        "1.1.*", "2.*", "3.*", "4.1.*", "5.*", "6.1.*", "6.4.*", "7.1.*", "7.5.*", "9.1.1",
    ];
    compare(&patterns, 60);
}

/// All but those of compression, which axum does not have. Messages have up to 16 MiB.
#[test]
#[ignore = "nightly"] // 300 cases on each server
fn all_cases_have_the_same_verdicts() {
    let _dog = testing::watchdog("all_cases_have_the_same_verdicts");
    compare(&["*", "-12.*", "-13.*"], 300);
}
