//! The release of Node.js on the `PATH`: some programs from npm need a newer one than that of
//! Debian 12.

use crate::shell::capture;
use std::process::Command;

/// The oldest major version that all of them run on.
const OLDEST: u32 = 20;

/// The version, such as `v22.11.0`, if it is recent enough.
pub fn recent() -> Option<String> {
    let (_, version) = capture(Command::new("node").arg("--version")).ok()?;
    let version = version.trim();
    let major = version.strip_prefix('v')?.split('.').next()?;
    (major.parse::<u32>().ok()? >= OLDEST).then(|| version.to_owned())
}
