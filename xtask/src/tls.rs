//! Checks of HTTPS that take too long for the test run: two scanners, and many reloads of
//! certificates under load.

use crate::{
    Arguments, Failure,
    object_server::ObjectServer,
    python,
    shell::{Outcome, capture, cargo, run, target},
    tally::run_tests,
};
use std::process::Command;
use std::{fs, path::Path};
use xtask::packages;

/// Findings of testssl.sh that every self-signed certificate has: no authority signed it, and
/// none can revoke it.
const SELF_SIGNED: [&str; 4] = [
    "cert_chain_of_trust",
    "cert_revocation",
    "cert_caIssuers",
    "cert_notAfter",
];
/// The same of sslyze. Mozilla's limit of 366 days is one for authorities.
const UNSIGNED: [&str; 2] = [
    "certificate_path_validation",
    "maximum_certificate_lifespan",
];
/// Findings of testssl.sh that are not about the server: its own OpenSSL lacks an engine; a server
/// without a name has no CAA record; and its first connection may end before the tickets of TLS 1.3
/// arrive, because s_client(1) ends with its empty input, so that the second one has no session.
const ELSEWHERE: [&str; 3] = [
    "engine_problem",
    "DNS_CAArecord",
    "sessionresumption_ticket",
];
/// Severities of testssl.sh that are not findings.
const HARMLESS: [&str; 3] = ["OK", "INFO", "DEBUG"];

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let reloads = arguments.number("--reloads", 1000)?;
    arguments.end()?;
    packages::need(&[("testssl", "testssl.sh")])?;
    let sslyze = python::sslyze()?.join("bin/sslyze");
    run(&mut cargo("build --release --quiet -p onrush-server"))?;
    let folder = target().join("tls-checks");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;

    let server = ObjectServer::start(&folder, &["--tls-self-signed", "--hsts"])?;
    println!("== testssl.sh");
    let findings = testssl(&server, &folder)?;
    println!("== sslyze");
    let complaints = scan_by_sslyze(&sslyze, &server)?;
    drop(server);

    println!("== {reloads} reloads under load");
    let mut test = cargo("test --release --quiet -p onrush-server --test cli");
    test.args([
        "reloads_under_load",
        "--",
        "--include-ignored",
        "--nocapture",
    ]);
    run_tests(test.env("ONRUSH_TEST_RELOADS", reloads.to_string()))?;

    let all: Vec<String> = findings.into_iter().chain(complaints).collect();
    match all.is_empty() {
        true => Ok(()),
        false => Err(Failure::Because(all.join("\n"))),
    }
}

/// Runs testssl.sh. Returns its findings, except the expected ones.
fn testssl(server: &ObjectServer, folder: &Path) -> Outcome<Vec<String>> {
    let file = folder.join("testssl.csv");
    let _ = fs::remove_file(&file);
    let mut command = Command::new("testssl");
    command.args(["--quiet", "--warnings", "off", "--color", "0", "--csvfile"]);
    // The exit code counts findings.
    capture(command.arg(&file).arg(server.address()))?;
    let csv = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let lines: Vec<&str> = csv.lines().skip(1).collect();
    println!("{} results", lines.len());
    if lines.len() < 100 {
        return Err(format!("testssl.sh did not complete: {}", file.display()));
    }
    Ok(lines.into_iter().filter_map(finding).collect())
}

/// What a line of testssl.sh reports, if it is a finding:
/// `"id","host/ip","port","severity","finding","cve","cwe"`.
fn finding(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.trim_matches('"').split("\",\"").collect();
    let [name, _, _, severity, text, ..] = fields[..] else {
        return Some(format!("testssl.sh: {line}"));
    };
    let expected = HARMLESS.contains(&severity)
        || SELF_SIGNED.iter().any(|n| name.starts_with(n))
        || ELSEWHERE.contains(&name);
    (!expected).then(|| format!("testssl.sh: {name}: {severity}: {text}"))
}

/// Runs sslyze with Mozilla's intermediate configuration. Returns what does not comply, except that
/// the certificate is not signed by an authority.
fn scan_by_sslyze(program: &Path, server: &ObjectServer) -> Outcome<Vec<String>> {
    let mut command = Command::new(program);
    command.args(["--mozilla_config", "intermediate", server.address()]);
    let (_, text) = capture(&mut command)?;
    let Some((_, compliance)) = text.split_once("COMPLIANCE AGAINST") else {
        print!("{text}");
        return Err("sslyze did not complete".to_owned());
    };
    print!("{compliance}");
    let lines = compliance.lines().filter(|line| line.contains("* "));
    let lines = lines.filter(|line| !UNSIGNED.iter().any(|finding| line.contains(finding)));
    Ok(lines
        .map(|line| format!("sslyze: {}", line.trim()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::finding;

    #[test]
    fn only_findings_are_reported() {
        let line = |name: &str, severity: &str| {
            finding(&format!(
                "\"{name}\",\"h/1\",\"443\",\"{severity}\",\"text\",\"\",\"\""
            ))
        };
        assert_eq!(line("TLS1_3", "OK"), None);
        assert_eq!(line("cert_chain_of_trust", "CRITICAL"), None);
        assert_eq!(line("DNS_CAArecord", "LOW"), None);
        assert!(line("cipher_order", "HIGH").is_some());
        let found = line("BEAST", "MEDIUM");
        assert_eq!(found.as_deref(), Some("testssl.sh: BEAST: MEDIUM: text"));
        assert!(finding("unexpected").is_some());
    }
}
