//! Checks where `unsafe` is allowed, and that it has a reason. It does not check the reason itself.

use super::{
    Complaint,
    source::{Source, Token},
};

/// Only one crate of the product may contain `unsafe`. Benchmarks and fuzz targets are not part of
/// the product.
const ALLOWED: [&str; 3] = ["crates/onrush-rt/", "bench/", "fuzz/"];

pub(super) fn check(file: &Source, found: &mut Vec<Complaint>) {
    let tokens = file.tokens();
    for (at, token) in tokens.iter().enumerate() {
        if token.text != "unsafe" || is_pointer_type(&tokens[at + 1..]) {
            continue;
        }
        if !ALLOWED.iter().any(|folder| file.path.starts_with(folder)) {
            let message = format!("`unsafe` outside {}", ALLOWED[0]);
            found.push(Complaint::new(&file.path, token.line, message));
        } else if !has_reason(file, token.line) {
            let message = "`unsafe` without a `SAFETY:` comment or a `# Safety` section";
            found.push(Complaint::new(&file.path, token.line, message));
        }
    }
}

/// Whether `fn(…)` or `extern "C" fn(…)` follows `unsafe`. Such a type needs no reason.
fn is_pointer_type(after: &[Token<'_>]) -> bool {
    let skip = usize::from(after.first().is_some_and(|token| token.text == "extern"));
    let texts: Vec<&str> = after
        .iter()
        .skip(skip)
        .take(2)
        .map(|token| token.text)
        .collect();
    texts == ["fn", "("]
}

/// Searches for a reason on the line, and above it in the statement, its attributes and the comment
/// before it.
fn has_reason(file: &Source, line: usize) -> bool {
    let lines = file.code.lines().zip(file.comments.lines()).take(line);
    let mut above: Vec<(&str, &str)> = lines.collect();
    let own = above.pop();
    if own.is_some_and(|(_, comment)| is_reason(comment)) {
        return true;
    }
    for (code, comment) in above.into_iter().rev() {
        if is_reason(comment) {
            return true;
        }
        let (code, comment) = (code.trim(), comment.trim());
        let is_comment = code.is_empty() && !comment.is_empty();
        let is_attribute = code.starts_with("#[");
        let goes_on = !code.is_empty() && !code.ends_with([';', '{', '}', ',']);
        if !(is_comment || is_attribute || goes_on) {
            return false;
        }
    }
    false
}

fn is_reason(comment: &str) -> bool {
    comment.contains("SAFETY:") || comment.contains("# Safety")
}

#[cfg(test)]
mod tests {
    use super::{super::complaint_lines, *};

    fn lines(path: &str, text: &str) -> Vec<usize> {
        complaint_lines(check, path, text)
    }

    fn in_runtime(text: &str) -> Vec<usize> {
        lines("crates/onrush-rt/src/x.rs", text)
    }

    #[test]
    fn only_the_runtime_may_contain_unsafe() {
        let text = "// SAFETY: never called.\nunsafe { f() }\n";
        assert_eq!(lines("crates/onrush-rt/src/x.rs", text), []);
        assert_eq!(lines("bench/limits/src/x.rs", text), []);
        assert_eq!(lines("crates/onrush/src/x.rs", text), [2]);
        assert_eq!(lines("xtask/src/x.rs", text), [2]);
    }

    #[test]
    fn a_reason_is_above_or_on_the_line() {
        assert_eq!(in_runtime("f();\nunsafe { g() };\n"), [2]);
        assert_eq!(in_runtime("unsafe { g() }; // SAFETY: yes.\n"), []);
        assert_eq!(
            in_runtime("// SAFETY: yes,\n// and more.\nlet x =\n    unsafe { g() };\n"),
            []
        );
        assert_eq!(
            in_runtime("/// # Safety\n/// Be careful.\n#[x]\npub unsafe fn f() {}\n"),
            []
        );
        assert_eq!(in_runtime("/// Careless.\nunsafe fn f() {}\n"), [2]);
        assert_eq!(in_runtime("unsafe impl Send for X {}\n"), [1]);
    }

    #[test]
    fn a_reason_counts_for_one_statement() {
        assert_eq!(
            in_runtime("// SAFETY: yes.\nunsafe { f() };\nunsafe { g() };\n"),
            [3]
        );
        assert_eq!(in_runtime("// SAFETY: yes.\n\nunsafe { f() };\n"), [3]);
    }

    #[test]
    fn comments_literals_and_types_are_ignored() {
        assert_eq!(
            in_runtime("// unsafe\nlet a = \"unsafe\";\n#![allow(unsafe_code)]\n"),
            []
        );
        assert_eq!(
            in_runtime("type F = unsafe fn(u8);\ntype G = unsafe extern \"C\" fn();\n"),
            []
        );
        assert_eq!(in_runtime("let a = \"SAFETY: //\"; unsafe { f() }\n"), [1]);
    }
}
