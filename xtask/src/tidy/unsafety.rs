//! Checks where `unsafe` is allowed, and that it has a reason. It does not check the reason itself.

use super::{
    Complaint,
    source::{Source, Token},
};

/// Two crates of the product may contain `unsafe`. Benchmarks, what tests share and the fuzz
/// targets are not a part of it. Elsewhere, tests and examples may accept the contract of
/// coroutines.
const ALLOWED: [&str; 5] = [
    "crates/onrush-rt/",
    "crates/onrush-coroutine/",
    "crates/testing/",
    "bench/",
    "fuzz/",
];

pub(super) fn check(file: &Source, found: &mut Vec<Complaint>) {
    let tokens = file.tokens();
    for (at, token) in tokens.iter().enumerate() {
        if token.text != "unsafe" || is_pointer_type(&tokens[at + 1..]) {
            continue;
        }
        let accepts = || is_example(&file.path) && accepts_contract(&tokens[at..]);
        if !ALLOWED.iter().any(|folder| file.path.starts_with(folder)) && !accepts() {
            let message = format!("`unsafe` outside {}", ALLOWED[0]);
            found.push(Complaint::new(&file.path, token.line, message));
        } else if !has_reason(file, token.line) {
            let message = "`unsafe` without a `SAFETY:` comment or a `# Safety` section";
            found.push(Complaint::new(&file.path, token.line, message));
        }
    }
}

/// Whether the file is a test or an example: below a folder of that name.
fn is_example(path: &str) -> bool {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    folders
        .split('/')
        .any(|folder| folder == "tests" || folder == "examples")
}

/// Whether this is exactly `unsafe { Contract::accept() }` or
/// `unsafe { coroutine::Contract::accept() }`.
fn accepts_contract(tokens: &[Token<'_>]) -> bool {
    const ACCEPTS: [&str; 6] = ["Contract", "::", "accept", "(", ")", "}"];
    let begins = |texts: &[&str], at: usize| {
        let found = tokens.iter().skip(at).map(|token| token.text);
        found.take(texts.len()).eq(texts.iter().copied())
    };
    let path = match begins(&["coroutine", "::"], 2) {
        true => 4,
        false => 2,
    };
    begins(&["unsafe", "{"], 0) && begins(&ACCEPTS, path)
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
    fn tests_and_examples_may_accept_the_contract_of_coroutines() {
        let accepts = "// SAFETY: waits nowhere.\nlet c = unsafe { Contract::accept() };\n";
        let with_module = accepts.replace("Contract", "coroutine::Contract");
        let with_attribute = "// SAFETY: waits nowhere.\n#[allow(unsafe_code)]\n\
            let c =\n    unsafe { Contract::accept() };\n";
        for text in [accepts, &with_module, with_attribute] {
            for path in ["crates/onrush/tests/common/x.rs", "examples/x.rs"] {
                assert_eq!(lines(path, text), [], "{path}: {text}");
            }
            for path in [
                "crates/onrush/src/x.rs",
                "crates/onrush/src/tests.rs",
                "xtask/src/x.rs",
            ] {
                assert_eq!(lines(path, text).len(), 1, "{path}: {text}");
            }
        }
        let without_reason = "let c = unsafe { Contract::accept() };\n";
        assert_eq!(lines("examples/x.rs", without_reason), [1]);
        for other in [
            "unsafe { f() }",
            "unsafe { Contract::accept(); f() }",
            "unsafe { f(); Contract::accept() }",
            "unsafe { Contract::accept() + f() }",
            "unsafe { f(Contract::accept()) }",
            "unsafe { Contract::accept(f()) }",
            "unsafe { mine::Contract::accept() }",
            "unsafe { mine::coroutine::Contract::accept() }",
            "unsafe { Contract::reject() }",
            "unsafe { Contract::accept",
            "unsafe fn f() -> Contract { Contract::accept() }",
            "unsafe impl Send for Contract {}",
        ] {
            let text = format!("// SAFETY: yes.\n{other}\n");
            assert_eq!(lines("examples/x.rs", &text), [2], "{other}");
        }
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
