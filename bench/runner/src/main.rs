//! The program `bench`, which `cargo xtask bench` builds and runs. All of it is in the library, of
//! which the experiments use parts.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    runner::main()
}
