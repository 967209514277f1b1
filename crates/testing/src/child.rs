//! Tests that run themselves in a process of their own, because they change it or end it.

use std::process::{Command, Output};

/// This test binary with only the test `name` of the module `module`, which is `module_path!()` at
/// the caller. Add variables or pipes before it is started.
///
/// # Panics
/// If the path of this program is unknown.
pub fn only(module: &str, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test binary"));
    command.args(["--exact", &path(module, name)]);
    command.args(["--nocapture", "--test-threads=1"]);
    command
}

/// Whether the test `name` of `module` has run in a child process. `false` in that process, which
/// then runs the test. A test that changes or measures its whole process begins with
/// `if elsewhere(module_path!(), "its name") { return; }`.
///
/// # Panics
/// If the child fails or does not run that test.
pub fn elsewhere(module: &str, name: &str) -> bool {
    const CHILD: &str = "ONRUSH_TEST_ELSEWHERE";
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        return false;
    }
    let output = only(module, name).env(CHILD, name).output();
    let output = output.expect("this test binary starts");
    let text = shown(&output);
    print!("{text}");
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{name} in a child: {}; its output is above",
        output.status
    );
    true
}

/// What a child has printed, on stdout and then on stderr. Each line is indented by four spaces, so
/// that none looks like a line of this test run, such as its result.
pub fn shown(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr];
    let texts = streams.map(|bytes| String::from_utf8_lossy(bytes));
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.map(|line| format!("    {line}\n")).collect()
}

/// The name of a test as the test harness shows it: its path without the crate.
fn path(module: &str, name: &str) -> String {
    match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{path, shown};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{ExitStatus, Output};

    #[test]
    fn a_test_runs_in_a_process_of_its_own() {
        let parent = std::process::id().to_string();
        let is_child = std::env::var("ONRUSH_TEST_PARENT");
        match is_child {
            Ok(id) => assert_ne!(id, parent),
            Err(_) => {
                let name = "a_test_runs_in_a_process_of_its_own";
                let mut command = super::only(module_path!(), name);
                let output = command.env("ONRUSH_TEST_PARENT", parent).output().unwrap();
                let text = shown(&output);
                assert!(
                    output.status.success() && text.contains("1 passed"),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_test_that_fails_elsewhere_fails() {
        let name = "a_test_that_fails_elsewhere_fails";
        let _silence = crate::panics::silence(|_| true);
        let outcome = std::panic::catch_unwind(|| {
            if !super::elsewhere(module_path!(), name) {
                panic!("in the child");
            }
        });
        let payload = outcome.expect_err("a panic");
        let message = payload.downcast_ref::<String>().map_or("", String::as_str);
        if message.is_empty() {
            // The child, whose test fails.
            std::panic::resume_unwind(payload);
        }
        assert!(
            message.contains("in a child: exit status: 101"),
            "{message}"
        );
        // No test has that name.
        let outcome = std::panic::catch_unwind(|| super::elsewhere(module_path!(), "missing"));
        assert!(outcome.is_err(), "0 passed");
    }

    #[test]
    fn every_line_of_a_child_is_indented() {
        let output = Output {
            status: ExitStatus::from_raw(0),
            stdout: b"\ntest result: FAILED. 0 passed\n".to_vec(),
            stderr: b"thread panicked\ntest result: none".to_vec(),
        };
        assert_eq!(
            shown(&output),
            "    \n    test result: FAILED. 0 passed\n    thread panicked\n    test result: none\n"
        );
    }

    /// The one that runs it counts results: that of a test that fails in a child of its own counts
    /// once.
    #[test]
    fn a_test_run_has_one_result_whatever_its_children_print() {
        let output = super::only(module_path!(), "a_test_that_fails_elsewhere_fails").output();
        let output = output.expect("this test binary starts");
        let text = shown(&output);
        let results = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(results("    test result: "), 1, "{text}");
        assert_eq!(results("        test result: FAILED"), 1, "{text}");
    }

    #[test]
    fn the_crate_is_not_part_of_the_name_of_a_test() {
        assert_eq!(path("runtime::wakers", "a"), "wakers::a");
        assert_eq!(path("runtime::wakers::deep", "a"), "wakers::deep::a");
        assert_eq!(path("kill", "a"), "a");
    }
}
