//! What a fresh Debian machine needs before the tests can run. Must not know what they do with it,
//! nor how packages are installed.

use crate::{
    packages,
    shell::{self, Outcome, capture, cargo, is_executable, run, target, which},
};
use std::{fs, path::PathBuf, process::Command};

/// Programs the tests and the fuzzers call, and the Debian packages they are in.
const PROGRAMS: [(&str, &str); 7] = [
    ("c++", "g++"),
    ("curl", "curl"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("valgrind", "valgrind"),
    ("wget", "wget"),
    ("wrk", "wrk"),
];

/// The release of cargo-deny that is installed when there is none.
const CARGO_DENY: &str = "0.20.2";

/// Sees to it that every program of the list can be run. Installs as root only.
pub(crate) fn programs() -> Outcome {
    packages::need(&PROGRAMS)
}

/// Where cargo-deny is; built into the target directory when it is not on the `PATH`.
///
/// From source, for no registry has a current binary of it. Without optimisation and the code for
/// fetching through the system's certificates that takes a minute instead of ten, and a check
/// still takes a second.
pub(crate) fn cargo_deny() -> Outcome<PathBuf> {
    let tools = target().join("tools");
    let own = tools.join("bin/cargo-deny");
    if let Some(found) = which("cargo-deny") {
        return Ok(found);
    }
    if is_executable(&own)
        && capture(Command::new(&own).arg("--version"))?
            .1
            .contains(CARGO_DENY)
    {
        return Ok(own);
    }
    println!("Building cargo-deny {CARGO_DENY} into {}.", tools.display());
    let build = tools.join("build");
    let mut install = cargo("install cargo-deny --locked --debug --no-default-features --force");
    install
        .args(["--quiet", "--version", CARGO_DENY, "--root"])
        .arg(&tools)
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env_remove("RUSTFLAGS");
    // From outside the workspace: neither its settings nor its lock file are meant for this.
    run(install.current_dir("/"))?;
    // Half a gigabyte that nobody needs again.
    let _ = fs::remove_dir_all(&build);
    Ok(own)
}

/// Checks licences, sources and doubled or unwanted crates; and known vulnerabilities where the
/// list of them can be fetched.
pub(crate) fn check_dependencies() -> Outcome {
    let deny = cargo_deny()?;
    let check = |what: &[&str]| {
        let mut command = Command::new(&deny);
        command
            .current_dir(shell::root())
            .args(["--log-level", "error", "check"]);
        command.args(["--hide-inclusion-graph"]).args(what);
        command
    };
    run(&mut check(&["bans", "licenses", "sources"]))?;
    let (ok, text) = capture(&mut check(&["advisories"]))?;
    if ok {
        println!("advisories ok");
        Ok(())
    } else if text.contains("failed to fetch") {
        println!("advisories skipped: their list cannot be fetched from here");
        Ok(())
    } else {
        print!("{text}");
        Err("a dependency has a known vulnerability, or was withdrawn".to_owned())
    }
}
