//! Installs npm for the test of its recipe, and packages for others. Debian's package of npm
//! depends on hundreds of others, so the program comes from the registry, as npm itself would
//! update it.

use crate::shell::{Outcome, capture, is_executable, run, target, which};
use std::os::unix::fs::symlink;
use std::{env, fs, path::PathBuf, process::Command};
use xtask::node;

/// A release for Node.js 18, which Debian 12 has, and the SHA-512 of its archive.
const RELEASE: &str = "10.9.4";
const SHA512: &str = "\
3a7506f37e85c1ba1021baad79f0cd9724748131f321fc117c4dc3ba235ec01b\
e7327584a41d15117c01945560aa9373220628fcc1e1dddd877a5fe9b336a900";

/// A client of resumable uploads that sends parts in parallel.
const TUS: &str = "tus-js-client@4.3.1";

/// Build tools with remote caches. They need Node.js 20.
const BUILD_TOOLS: [&str; 4] = [
    "@microsoft/rush@5.179.0",
    "@moonrepo/cli@2.5.5",
    "nx@24.0.6",
    "turbo@2.11.11",
];

/// A workspace of Rush without projects. Rush fetches the pnpm that it names.
const RUSH: [(&str, &str); 2] = [
    (
        "rush.json",
        r#"{"rushVersion": "5.179.0", "pnpmVersion": "9.15.9",
            "nodeSupportedVersionRange": ">=20.9.0", "projects": []}"#,
    ),
    (
        "common/config/rush/pnpm-config.json",
        r#"{"useWorkspaces": true}"#,
    ),
];

/// Installs the client of tus into `target/tools/tus-js`.
pub(crate) fn tus() -> Outcome {
    install("tus-js", &[TUS])
}

/// Installs the build tools into `target/tools/js`.
pub(crate) fn build_tools() -> Outcome {
    install("js", &BUILD_TOOLS)
}

/// Has Rush fetch its pnpm into `target/tools/rush`, which the tests give it as its global folder.
/// Does nothing if Node.js is too old for Rush.
pub(crate) fn pnpm_of_rush() -> Outcome {
    let Some(node) = node::recent() else {
        return Ok(());
    };
    let tools = target().join("tools");
    let folder = tools.join("rush");
    // Rush keeps a pnpm for each version of Node.js.
    let stamp = folder.join(format!("installed for {node}"));
    if stamp.exists() {
        return Ok(());
    }
    println!("Rush fetches pnpm into {}.", folder.display());
    let workspace = folder.join("workspace");
    let error = |error: std::io::Error| format!("{}: {error}", folder.display());
    for (name, content) in RUSH {
        let path = workspace.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&workspace)).map_err(error)?;
        fs::write(path, content).map_err(error)?;
    }
    let others = env::var_os("PATH").unwrap_or_default();
    let own = [tools.join("npm/bin")].into_iter();
    let path = env::join_paths(own.chain(env::split_paths(&others)));
    let path = path.map_err(|error| error.to_string())?;
    let mut rush = Command::new(tools.join("js/node_modules/.bin/rush"));
    rush.args(["--quiet", "update"]).current_dir(&workspace);
    let (is_done, said) = capture(rush.env("RUSH_GLOBAL_FOLDER", &folder).env("PATH", path))?;
    match is_done {
        true => fs::write(&stamp, "").map_err(error),
        false => Err(format!("`rush update` failed:\n{said}")),
    }
}

/// Installs packages into a folder of their own in `target/tools`.
fn install(name: &str, packages: &[&str]) -> Outcome {
    let folder = target().join("tools").join(name);
    // The name of this file has the versions, so a change of one causes an installation.
    let packages_text = packages.join(" ");
    let stamp = folder.join(packages_text.replace('/', "+"));
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
