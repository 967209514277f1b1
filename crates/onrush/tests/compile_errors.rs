//! What the compiler says about common mistakes is what this crate has written for them.
//!
//! The tests call rustc and look for the crate's own text. The crate `trybuild` would compare all
//! of rustc's output, whose rest changes with each compiler, and would build all dependencies a
//! second time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A program with this function and this handler, which may use the string `name`.
fn program(function: &str, handler: &str) -> String {
    format!(
        "use onrush::{{Request, Response, Router, Server}};
        pub struct Page;
        {function}
        fn main() -> std::io::Result<()> {{
            let name = String::from(\"Ada\");
            let _ = (&name, Response::text(\"\"));
            Server::bind(\"127.0.0.1:0\").serve(Router::new().get(\"/\", {handler}))
        }}"
    )
}

/// The errors of rustc about `program`, or nothing if there are none.
fn errors(library: &Path, name: &str, program: &str) -> String {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = output.join(format!("compile-{}-{name}.rs", std::process::id()));
    std::fs::write(&source, program).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=bin", "--emit=metadata"]);
    rustc.arg("--extern").arg(with("onrush=", library));
    rustc
        .arg("-L")
        .arg(with("dependency=", library.parent().unwrap()));
    rustc
        .arg("-o")
        .arg(source.with_extension("rmeta"))
        .arg(&source);
    let done = rustc.output().expect("rustc starts");
    for file in [source.with_extension("rmeta"), source] {
        let _ = std::fs::remove_file(file);
    }
    let said = String::from_utf8(done.stderr).unwrap();
    match done.status.success() {
        true => String::new(),
        false => said,
    }
}

fn with(prefix: &str, path: &Path) -> String {
    format!("{prefix}{}", path.display())
}

/// The crate as cargo has built it for this test. A build with other features or by another
/// compiler may be beside it: the newest with which a correct program compiles is taken.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let mut found: Vec<_> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libonrush-") && name.ends_with(".rlib")
        })
        .collect();
    found.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    let correct = program("async fn hello(_: Request) -> u16 { 204 }", "hello");
    let mut said = String::new();
    for library in found.into_iter().rev() {
        said = errors(&library, "correct", &correct);
        if said.is_empty() {
            return library;
        }
    }
    panic!("no build of the crate compiles a correct program: {said}");
});

/// Checks that rustc says each of `texts` about this function or handler.
#[track_caller]
fn assert_says(name: &str, function: &str, handler: &str, texts: &[&str]) {
    let said = errors(&LIBRARY, name, &program(function, handler));
    assert!(!said.is_empty(), "{name} compiles");
    for text in texts {
        assert!(said.contains(text), "{name}: no {text:?} in {said}");
    }
}

#[test]
fn a_handler_that_is_not_async_is_told_to_be() {
    let texts = [
        "a handler is an `async fn`, but this function returns `Response`",
        "write `async fn`, or `async move { … }` in a closure",
        "blocking code can be a handler with the feature `coroutine`",
    ];
    let function = "fn hello(_: Request) -> Response { Response::new(204) }";
    assert_says("function", function, "hello", &texts);
    assert_says("closure", "", "|_: Request| Response::new(204)", &texts);
}

#[test]
fn a_result_that_is_no_response_is_named_with_the_trait_to_implement() {
    let texts = [
        "`Page` is not a response",
        "a handler returns a `Response`, text, bytes, a status code, or a `Result` of them",
        "implement `onrush::IntoResponse` for `Page` to return it from handlers",
    ];
    let function = "async fn hello(_: Request) -> Page { Page }";
    assert_says("result", function, "hello", &texts);
}

#[test]
fn a_value_that_is_no_function_is_not_a_handler() {
    let texts = [
        "`&str` is not a handler",
        "a handler is an `async fn(Request)` whose result is `IntoResponse`",
        "a closure has the form `|request: Request| async move { … }`",
    ];
    assert_says("value", "", "\"hello\"", &texts);
}

/// The compiler checks borrows after traits, so the text is its own.
#[test]
fn a_handler_cannot_borrow_what_its_closure_has_captured() {
    let borrows = "move |_: Request| async { Response::text(name.clone()) }";
    assert_says("borrows", "", borrows, &["captured variable"]);
    let owns = "move |_: Request| {
        let name = name.clone();
        async move { Response::text(name) }
    }";
    assert_eq!(errors(&LIBRARY, "owns", &program("", owns)), "");
}
