#!/bin/sh
# serde_json 1.0.154 (crates.io): one `use` of it in a dependency makes `assert_eq!(list, [])` of
# numbers ambiguous in a program that neither names nor uses serde_json.
#
# A reader expects: what a crate of others depends on has no effect on the types of one's own code.
# What happens: serde_json implements `PartialEq<Value>` for the integers, for `bool`, `str` and
# `String`. The compiler takes each implementation of each crate that it has loaded into account,
# also of dependencies of dependencies. With two implementations for `u8`, the type of the elements
# of `[]` cannot be inferred any more (E0282, E0283). The program here compiles without the feature
# that adds the crate `tool`, and does not compile with it.
# Why it matters: an optional feature of a library (JSON) breaks code that never touches it, in its
# own tests and in those of its users. Code that compares lists writes `is_empty()`.
#
# Needs: cargo and rustc (tried with 1.95), and crates.io. Exit: 0 as recorded, 1 different, 2 could
# not be tried.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 2' INT TERM
cd "$dir"
mkdir -p app/src tool/src

cat > app/Cargo.toml <<'TOML'
[package]
name = "app"
version = "0.0.0"
edition = "2024"

[features]
tool = ["dep:tool"]

[dependencies]
tool = { path = "../tool", optional = true }
TOML
cat > app/src/main.rs <<'RUST'
fn main() {
    #[cfg(feature = "tool")]
    println!("{}", tool::null());
    let list: Vec<u8> = Vec::new();
    assert_eq!(list, []);
}
RUST
cat > tool/Cargo.toml <<'TOML'
[package]
name = "tool"
version = "0.0.0"
edition = "2024"

[dependencies]
serde_json = "=1.0.154"
TOML
cat > tool/src/lib.rs <<'RUST'
pub fn null() -> String {
    serde_json::Value::Null.to_string()
}
RUST

cd app
timeout 120 cargo fetch --quiet 2> fetched || { cat fetched >&2; exit 2; }
{
    cargo tree --quiet --offline --all-features --depth 2 --prefix depth --format ' {p}' |
        sed -n 's/^2 \(serde_json [^ ]*\).*/\1/p'
    for features in '' tool; do
        code=0
        timeout 300 cargo check --quiet --offline --features "$features" 2> errors || code=$?
        echo "features '$features': exit code $code"
        sed -n -e 's/^error\[\(E[0-9]*\)\].*/\1/p' \
            -e 's/^ *- \(impl PartialEq.*\)/\1/p' errors | sort -u
    done
} | tee seen
cat > recorded <<'TEXT'
serde_json v1.0.154
features '': exit code 0
features 'tool': exit code 101
E0282
E0283
impl PartialEq for u8;
impl PartialEq<serde_json::value::Value> for u8;
TEXT
cmp -s seen recorded || { echo "different from what is recorded" >&2; exit 1; }
echo "as recorded"
