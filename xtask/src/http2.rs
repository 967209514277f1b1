//! `cargo xtask http2`: two suites of others that check servers of HTTP/2: h2spec runs against the
//! object server, and httpwg, whose requests are POST, against an example. Tests of h2spec that are
//! expected to fail are in a list, with reasons; any other result is a failure, also if a test of
//! the list passes.

use crate::{
    Arguments, Failure, go,
    object_server::ObjectServer,
    setup,
    shell::{Outcome, cannot_run, capture, cargo, run, target},
};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::{collections::BTreeMap, fs, path::Path};

/// How long h2spec waits for a frame: a loaded machine is slow.
const WAIT_S: &str = "10";
/// The same for httpwg, which waits that long in each test that expects nothing.
const WAIT_MS: &str = "2000";

/// The tests of h2spec and of httpwg: a suite that ends early has not passed.
const H2SPEC_TESTS: usize = 145;
const HTTPWG_TESTS: usize = 107;

/// A test that is expected to fail, and why.
type Expected = (&'static str, &'static str);

const PRIORITY: &str = "RFC 9113 §5.3.2 has withdrawn the tree of priorities, and what a frame \
                        says of it is ignored";

/// What fails in h2spec, which tests for RFC 7540.
const H2SPEC: [Expected; 2] = [
    (
        "http2/5.3.1 Sends HEADERS frame that depend on itself",
        PRIORITY,
    ),
    (
        "http2/5.3.1 Sends PRIORITY frame that depend on itself",
        PRIORITY,
    ),
];
/// What fails in h2spec without TLS besides.
const H2SPEC_PLAIN: [Expected; 1] = [(
    "http2/3.5 Sends invalid connection preface",
    "without TLS, what does not begin as HTTP/2 is HTTP/1.1, and gets a response of that version",
)];

/// Whether each test has passed, by its name.
type Results = BTreeMap<String, bool>;

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    let (h2spec, httpwg) = (go::h2spec()?, setup::httpwg()?);
    run(&mut cargo("build --release --quiet -p onrush-server"))?;
    run(&mut cargo(
        "build --release --quiet -p onrush --example hello",
    ))?;
    let folder = target().join("http2-checks");
    let served = folder.join("served");
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&served).map_err(error)?;
    let mut is_ok = true;
    for driver in ["io_uring", "epoll"] {
        let start = |tls: &[&str]| {
            let options = [tls, &["--driver", driver, "--allow", "put"]].concat();
            ObjectServer::start(&served, &options)
        };
        let server = start(&["--tls-self-signed"])?;
        let results = run_h2spec(&h2spec, &server, &folder, &["--tls", "--insecure"])?;
        is_ok &= judge("h2spec", driver, H2SPEC_TESTS, &results, &H2SPEC);
        let server = start(&[])?;
        let results = run_h2spec(&h2spec, &server, &folder, &[])?;
        let expected = [&H2SPEC[..], &H2SPEC_PLAIN].concat();
        is_ok &= judge(
            "h2spec without TLS",
            driver,
            H2SPEC_TESTS,
            &results,
            &expected,
        );
        drop(server);
        let results = run_httpwg(&httpwg, &Example::start(driver)?)?;
        is_ok &= judge("httpwg", driver, HTTPWG_TESTS, &results, &[]);
    }
    match is_ok {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

/// Runs h2spec, and reads its report.
fn run_h2spec(
    program: &Path,
    server: &ObjectServer,
    folder: &Path,
    options: &[&str],
) -> Outcome<Results> {
    let report = folder.join("h2spec.xml");
    let _ = fs::remove_file(&report);
    let (host, port) = host_and_port(server)?;
    let mut command = Command::new(program);
    command.args(["--host", host, "--port", port, "--timeout", WAIT_S]);
    command.args(options).arg("--junit-report").arg(&report);
    // The exit code says whether a test has failed.
    let (_, text) = capture(&mut command)?;
    let xml = fs::read_to_string(&report)
        .map_err(|error| format!("{}: {error}\n{text}", report.display()))?;
    Ok(results_of_report(&xml))
}

/// The results in a report in the format of JUnit. A name is the section and the title.
fn results_of_report(xml: &str) -> Results {
    let tests = xml.split("<testcase ").skip(1);
    let results = tests.filter_map(|test| {
        let (test, _) = test.split_once("</testcase>")?;
        let field = |name: &str| {
            let (_, rest) = test.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        let (_, content) = test.split_once('>')?;
        let name = format!("{} {}", field("package")?, field("classname")?);
        Some((name, content.trim().is_empty()))
    });
    results.collect()
}

/// The example `hello`, which responds to every request with 200. Dropping it ends it.
struct Example {
    child: Child,
    address: String,
}

impl Example {
    /// Starts it. httpwg waits until it listens.
    fn start(driver: &str) -> Outcome<Example> {
        // A port that is free now. Nothing else takes it before the example does.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| error.to_string())?;
        let mut command = Command::new(target().join("release/examples/hello"));
        command.arg(address.port().to_string());
        command.env("ONRUSH_DRIVER", driver);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Example {
            child: child.map_err(|error| cannot_run(&command, &error))?,
            address: address.to_string(),
        })
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs httpwg, and reads what it prints. Its tests run one after another.
fn run_httpwg(program: &Path, server: &Example) -> Outcome<Results> {
    let mut command = Command::new(program);
    command.args(["--address", &server.address]);
    command.args(["--connect-timeout", WAIT_MS, "--frame-timeout", WAIT_MS]);
    let (_, text) = capture(command.env("SEQUENTIAL", "1"))?;
    Ok(results_of_lines(&text))
}

/// The results in the lines of httpwg.
fn results_of_lines(text: &str) -> Results {
    let results = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once("Test ")?;
        let (outcome, name) = rest.split_once(": ")?;
        match outcome {
            "passed" => Some((name.to_owned(), true)),
            "failed" => Some((name.to_owned(), false)),
            _ => None,
        }
    });
    results.collect()
}

fn host_and_port(server: &ObjectServer) -> Outcome<(&str, &str)> {
    let parts = server.address().rsplit_once(':');
    parts.ok_or_else(|| format!("{} is no address", server.address()))
}

/// Prints the results of a suite in the form of the test runner. The failures that are expected
/// count as ignored. Returns whether there is no other.
fn judge(
    suite: &str,
    driver: &str,
    tests: usize,
    results: &Results,
    expected: &[Expected],
) -> bool {
    println!("== {suite}, {driver}");
    for (name, reason) in expected {
        println!("expected to fail: {name}: {reason}");
    }
    let wrong = unexpected(tests, results, expected);
    let passed = results.values().filter(|passed| **passed).count();
    let word = match wrong.is_empty() {
        true => "ok",
        false => "FAILED",
    };
    if !wrong.is_empty() {
        println!("failures:\n{}", wrong.join("\n"));
    }
    println!(
        "test result: {word}. {passed} passed; {} failed; {} ignored; 0 measured; 0 filtered out",
        wrong.len(),
        expected.len()
    );
    wrong.is_empty()
}

/// What differs from the expectation, a line each.
fn unexpected(tests: usize, results: &Results, expected: &[Expected]) -> Vec<String> {
    let mut wrong = Vec::new();
    if results.len() != tests {
        wrong.push(format!("{} tests instead of {tests}", results.len()));
    }
    let is_expected = |name: &str| expected.iter().any(|(of, _)| *of == name);
    for (name, passed) in results {
        match (passed, is_expected(name)) {
            (true, true) => wrong.push(format!("it passes, and is expected to fail: {name}")),
            (false, false) => wrong.push(format!("it fails: {name}")),
            _ => {}
        }
    }
    for (name, _) in expected {
        if !results.contains_key(*name) {
            wrong.push(format!("it has not run: {name}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "<testsuites>\n<testsuite name=\"s\" package=\"http2/1\" tests=\"2\">\n\
        <testcase package=\"http2/1\" classname=\"a test\" time=\"0.1\"></testcase>\n\
        <testcase package=\"http2/1\" classname=\"another\" time=\"0.1\">\n\
        <error>Timeout</error>\n</testcase></testsuite>\n</testsuites>";

    #[test]
    fn results_are_read_in_both_forms() {
        let results = results_of_report(REPORT);
        let expected = [("http2/1 a test", true), ("http2/1 another", false)];
        let expected: Results = expected.map(|(name, ok)| (name.to_owned(), ok)).into();
        assert_eq!(results, expected);
        let lines = "Holding 1 connections\n\u{2705} Test passed: RFC 9113 :: x :: a\n\
            \u{274c} Test failed: RFC 9113 :: x :: b\nTimeout: 3\n";
        let expected = [("RFC 9113 :: x :: a", true), ("RFC 9113 :: x :: b", false)];
        let expected: Results = expected.map(|(name, ok)| (name.to_owned(), ok)).into();
        assert_eq!(results_of_lines(lines), expected);
    }

    #[test]
    fn every_difference_from_the_expectation_is_named() {
        let results = results_of_report(REPORT);
        let fails = ("http2/1 another", "why");
        assert!(unexpected(2, &results, &[fails]).is_empty());
        assert_eq!(unexpected(2, &results, &[]), ["it fails: http2/1 another"]);
        let wrong = unexpected(
            3,
            &results,
            &[fails, ("http2/1 a test", "why"), ("x", "why")],
        );
        assert_eq!(
            wrong,
            [
                "2 tests instead of 3",
                "it passes, and is expected to fail: http2/1 a test",
                "it has not run: x",
            ]
        );
    }
}
