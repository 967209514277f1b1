//! `cargo xtask hls`: the recipe of ffmpeg. Its packages are too large for the test run.

use crate::shell::{cargo, run};
use crate::{Arguments, Failure, packages};

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    packages::need(&[("ffmpeg", "ffmpeg")])?;
    let mut test = cargo("test -p onrush-server --test clients ffmpeg");
    run(test
        .args(["--", "--include-ignored", "--nocapture"])
        .env("CI", "1"))?;
    Ok(())
}
