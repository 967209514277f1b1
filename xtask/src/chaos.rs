//! `cargo xtask chaos`: many reads during writes and removals of the same objects. The test run
//! does the same with fewer reads.

use crate::shell::cargo;
use crate::tally::run_tests;
use crate::{Arguments, Failure};

/// Reads on each driver.
const READS: u64 = 1_000_000;

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let reads = arguments.number("--reads", READS)?;
    arguments.end()?;
    let mut test = cargo("test --release --quiet -p onrush-server --test clients chaos::");
    test.args(["--", "--include-ignored", "--nocapture"]);
    Ok(run_tests(test.env("ONRUSH_TEST_READS", reads.to_string()))?)
}
