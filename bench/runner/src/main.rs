//! The program `bench`, which `cargo xtask bench` builds and runs. Its code is in the library, which
//! the experiments use, too.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    runner::main()
}
