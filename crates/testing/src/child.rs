//! Tests that run themselves in a process of their own, because they change it or end it.

use std::process::Command;

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

/// The name of a test as the test harness shows it: its path without the crate.
fn path(module: &str, name: &str) -> String {
    match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn the_crate_is_not_part_of_the_name_of_a_test() {
        assert_eq!(path("runtime::wakers", "a"), "wakers::a");
        assert_eq!(path("runtime::wakers::deep", "a"), "wakers::deep::a");
        assert_eq!(path("kill", "a"), "a");
    }
}
