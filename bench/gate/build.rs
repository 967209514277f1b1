//! Passes the compiler's version to the program, because the instruction counts depend on it.

use std::env;
use std::process::Command;

fn main() {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output();
    let version = output
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok());
    let version = version
        .as_deref()
        .and_then(|text| text.split_whitespace().nth(1));
    println!(
        "cargo:rustc-env=GATE_RUSTC={}",
        version.unwrap_or("unknown")
    );
    println!("cargo:rerun-if-changed=build.rs");
}
