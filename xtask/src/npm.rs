//! Installs npm for the test of its recipe, and packages for others. Debian's package of npm
//! depends on hundreds of others, so the program comes from the registry, as npm itself would
//! update it.

use crate::shell::{Outcome, is_executable, run, target, which};
use std::os::unix::fs::symlink;
use std::{fs, path::PathBuf, process::Command};

/// A release for Node.js 18, which Debian 12 has, and the SHA-512 of its archive.
const RELEASE: &str = "10.9.4";
const SHA512: &str = "\
3a7506f37e85c1ba1021baad79f0cd9724748131f321fc117c4dc3ba235ec01b\
e7327584a41d15117c01945560aa9373220628fcc1e1dddd877a5fe9b336a900";

/// A client of resumable uploads that sends parts in parallel.
const TUS: &str = "tus-js-client@4.3.1";

/// Build tools with remote caches. They need Node.js 20.
const BUILD_TOOLS: [&str; 2] = ["nx@24.0.6", "turbo@2.11.11"];

/// Installs the client of tus into `target/tools/tus-js`.
pub(crate) fn tus() -> Outcome {
    install("tus-js", &[TUS])
}

/// Installs the build tools into `target/tools/js`.
pub(crate) fn build_tools() -> Outcome {
    install("js", &BUILD_TOOLS)
}

/// Installs packages into a folder of their own in `target/tools`.
fn install(name: &str, packages: &[&str]) -> Outcome {
    let folder = target().join("tools").join(name);
    // The name of this file has the versions, so a change of one causes an installation.
    let packages_text = packages.join(" ");
    let stamp = folder.join(&packages_text);
    if stamp.exists() {
        return Ok(());
    }
    npm()?;
    println!("Installing {packages_text} into {}.", folder.display());
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(error)?;
    let own = target().join("tools/npm/bin/npm");
    let npm = which("npm").unwrap_or(own);
    let mut install = Command::new(npm);
    install.args([
        "install",
        "--silent",
        "--ignore-scripts",
        "--no-package-lock",
    ]);
    run(install.arg("--prefix").arg(&folder).args(packages))?;
    fs::write(&stamp, "").map_err(error)
}

/// Ensures that npm is on the `PATH` or in `target/tools/npm/bin`.
pub(crate) fn npm() -> Outcome {
    let folder = target().join("tools/npm");
    let npm = folder.join("bin/npm");
    if which("npm").is_some() || is_executable(&npm) {
        return Ok(());
    }
    println!("Installing npm {RELEASE} into {}.", folder.display());
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder.join("bin")).map_err(error)?;
    let within = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(&folder);
        command
    };
    let (file, url) = (
        "npm.tgz",
        format!("https://registry.npmjs.org/npm/-/npm-{RELEASE}.tgz"),
    );
    run(within("curl").args(["-sSfL", "--retry", "3", "-o", file, &url]))?;
    let check = format!("echo '{SHA512}  {file}' | sha512sum --check --quiet");
    run(within("sh").args(["-c", &check]))?;
    run(within("tar").args(["-xzf", file]))?;
    let _ = fs::remove_file(folder.join(file));
    symlink(PathBuf::from("../package/bin/npm-cli.js"), &npm).map_err(error)
}
