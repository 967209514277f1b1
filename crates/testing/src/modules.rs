//! Test binaries that contain the modules of another one again, with other clients.

/// Modules that a binary does not contain, by the reason.
type NotHere<'a> = [(&'a str, &'a [&'a str])];

/// Checks that each module of the file `main` is in the file `here` or in the list `not_here`.
/// Both files are given as text.
///
/// # Panics
/// A module is in neither or in both, or one is listed that `main` does not contain.
#[track_caller]
pub fn assert_all_modules(main: &str, here: &str, not_here: &NotHere<'_>) {
    let elsewhere = not_here.iter().flat_map(|(_, names)| names.iter().copied());
    let mut covered: Vec<&str> = modules(here).chain(elsewhere).collect();
    let mut all: Vec<&str> = modules(main).collect();
    covered.sort_unstable();
    all.sort_unstable();
    assert_eq!(covered, all);
}

/// The names of `mod NAME;`, also before a comment.
fn modules(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("mod "));
    names.filter_map(|name| name.split_once(';').map(|(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::assert_all_modules;

    const MAIN: &str = "mod common;\nmod a;\nmod b; // about b\n//mod c;\n";

    #[test]
    fn modules_are_here_or_have_a_reason() {
        assert_all_modules(MAIN, "mod common;\nmod b;\n", &[("it is other", &["a"])]);
    }

    #[test]
    #[should_panic(expected = "left")]
    fn a_module_without_a_reason_is_found() {
        assert_all_modules(MAIN, "mod common;\nmod b;\n", &[]);
    }

    #[test]
    #[should_panic(expected = "left")]
    fn a_reason_without_a_module_is_found() {
        assert_all_modules("mod a;\n", "mod a;\n", &[("it is gone", &["b"])]);
    }
}
