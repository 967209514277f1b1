//! Two tests of the build cache at a size that takes too long for the test run.

use crate::{Arguments, Failure, shell::cargo, tally::run_tests};

/// After a restart, the first objects are to be served, and a new one is to be stored, within this
/// time.
const SERVES_WITHIN_MS: usize = 1000;

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let bytes = arguments.number("--bytes", 1 << 30)?;
    let objects = arguments.number("--objects", 1_000_000)?;
    arguments.end()?;
    let mut test = cargo("test --release --quiet -p onrush-server --test cli --");
    // Behind `--`, because cargo itself accepts one name only.
    test.args(["a_cache_filled_by_32_writers", "a_restarted_cache_serves"]);
    test.args(["--include-ignored", "--nocapture", "--test-threads=1"])
        .env("ONRUSH_TEST_CACHE_BYTES", bytes.to_string())
        .env("ONRUSH_TEST_CACHE_OBJECTS", objects.to_string());
    let within_ms = SERVES_WITHIN_MS.to_string();
    test.env("ONRUSH_TEST_CACHE_SERVES_WITHIN_MS", within_ms);
    Ok(run_tests(&mut test)?)
}
