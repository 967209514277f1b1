//! Python packages that the tests and other tasks need, from PyPI, in environments in
//! `target/tools`.

use crate::packages::need;
use crate::shell::{Outcome, run, target};
use std::{fs, path::PathBuf, process::Command};

/// The TLS stack that sends what the RFCs forbid.
const TLSLITE: &str = "tlslite-ng==0.8.2";
/// A client of resumable uploads.
const TUSPY: &str = "tuspy==1.1.0";
/// The scanner of TLS servers.
const SSLYZE: &str = "sslyze==6.3.1";
/// What environments need, and Debian has in a package of its own.
const ENSUREPIP: &str = "/usr/lib/python3.11/ensurepip/__init__.py";

/// Installs tlslite-ng for the tests.
pub(crate) fn tlslite() -> Outcome {
    install("tlslite", TLSLITE).map(drop)
}

/// Installs sslyze, and returns its environment.
pub(crate) fn sslyze() -> Outcome<PathBuf> {
    install("sslyze", SSLYZE)
}

/// Installs the client of tus for the tests.
pub(crate) fn tuspy() -> Outcome {
    install("tuspy", TUSPY).map(drop)
}

/// Installs a package into an environment of its own, and returns the environment.
fn install(name: &str, package: &str) -> Outcome<PathBuf> {
    let environment = target().join("tools/python").join(name);
    // The name of this file has the version, so a change of it causes an installation.
    let stamp = environment.join(package);
    if stamp.exists() {
        return Ok(environment);
    }
    println!("Installing {package} into {}.", environment.display());
    if !can_make_environments() {
        need(&[(ENSUREPIP, "python3-venv")])?;
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    run(pip.arg(package))?;
    fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(environment)
}

/// Whether Python can make environments.
fn can_make_environments() -> bool {
    let mut python = Command::new("python3");
    let status = python.args(["-c", "import ensurepip, venv"]).status();
    status.is_ok_and(|status| status.success())
}
