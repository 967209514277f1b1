//! Tests that cannot run here, because something that they need is missing.

/// Whether a test finds what it needs. If not, prints that it is skipped, with the `reason`.
///
/// # Panics
/// If it does not and `CI` is set: there, nothing may be missing.
pub fn or_skip(is_found: bool, reason: &str) -> bool {
    if !is_found {
        let in_ci = std::env::var_os("CI").is_some();
        assert!(!in_ci, "with CI, no test may be skipped: {reason}");
        println!("skipped: {reason}");
    }
    is_found
}

#[cfg(test)]
mod tests {
    use super::or_skip;
    use crate::child::{only, shown};

    #[test]
    fn a_test_is_skipped_except_in_ci() {
        const CHILD: &str = "ONRUSH_TEST_SKIP";
        if std::env::var_os(CHILD).is_some() {
            assert!(!or_skip(false, "it is missing"));
            return;
        }
        let name = "a_test_is_skipped_except_in_ci";
        let mut command = only(module_path!(), name);
        command.env(CHILD, "1").env_remove("CI");
        let output = command.output().expect("it starts");
        let text = shown(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("skipped: it is missing\n"), "{text}");
        let output = command.env("CI", "1").output().expect("it starts");
        let text = shown(&output);
        assert_eq!(output.status.code(), Some(101), "{text}");
        let reason = "with CI, no test may be skipped: it is missing";
        assert!(text.contains(reason), "{text}");
        assert!(or_skip(true, "nothing"));
    }
}
