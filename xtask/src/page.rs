//! `cargo xtask page`: an upload of 1 GiB with the page in Chromium, which is interrupted and
//! continued. The test run does the same with fewer bytes.

use crate::shell::cargo;
use crate::tally::run_tests;
use crate::{Arguments, Failure, packages, python};

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let mib = arguments.number("--mib", 1024)?;
    arguments.end()?;
    packages::need(&[("chromium", "chromium"), ("python3", "python3")])?;
    python::browser()?;
    let mut test = cargo("test --quiet -p onrush-server --test clients");
    test.args(["chromium_continues_large_uploads", "--"]);
    test.args(["--include-ignored", "--nocapture"]);
    test.env("ONRUSH_TEST_LARGE_MIB", mib.to_string());
    Ok(run_tests(test.env("CI", "1"))?)
}
