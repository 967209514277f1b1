//! `cargo xtask crates`: each crate of the product is packed and built from its package, and all
//! are checked with the oldest Rust that they name.
//!
//! There is no published version, so there is none whose interface could be compared
//! (cargo-semver-checks).

use crate::{
    Arguments, Failure,
    shell::{Outcome, capture, cargo, root, run},
};
use std::{fs, process::Command, time::SystemTime};

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    let crates = published()?;
    build_packages(&crates)?;
    println!("{} packages are built: {}", crates.len(), crates.join(", "));
    let version = oldest_rust()?;
    let mut toolchain = Command::new("rustup");
    toolchain.args(["toolchain", "install", &version, "--profile", "minimal"]);
    if !capture(&mut toolchain).is_ok_and(|(success, _)| success) {
        println!("Rust {version} is not checked: rustup cannot install it");
        return Ok(());
    }
    let mut check = Command::new("cargo");
    check.arg(format!("+{version}"));
    check.args(cargo("check --quiet --all-features").get_args());
    for name in &crates {
        check.args(["--package", name]);
    }
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        check.env_remove(variable);
    }
    check.current_dir(root());
    // A separate folder, because another compiler would replace the usual builds.
    check.env("CARGO_TARGET_DIR", crate::shell::target().join("oldest"));
    run(&mut check)?;
    println!("Rust {version} builds them");
    Ok(())
}

/// Packs the crates, and builds each from its package and those of the others.
///
/// Cargo keeps what it has unpacked of a version of a registry, and the registry of the packages is
/// a folder of the target. So each run has a folder of its own; otherwise a crate would be built
/// with the others as they were in the first run.
fn build_packages(crates: &[String]) -> Outcome {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let folder = format!("crates-{}", now.unwrap_or_default().as_nanos());
    let folder = crate::shell::target().join(folder);
    let mut pack = cargo("package --quiet --allow-dirty");
    for name in crates {
        pack.args(["--package", name]);
    }
    pack.env("CARGO_TARGET_DIR", &folder);
    let packed = run(&mut pack);
    let removed = fs::remove_dir_all(&folder);
    packed.and(removed.map_err(|error| format!("{}: {error}", folder.display())))
}

/// The crates in `crates/` whose manifest does not forbid to publish them, in the order of names.
fn published() -> Outcome<Vec<String>> {
    let read = |error| format!("crates: {error}");
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("crates")).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).map_err(read)?;
        if !manifest.lines().any(|line| line.starts_with("publish")) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            names.push(name.into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// `rust-version` of the workspace.
fn oldest_rust() -> Outcome<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"));
    let manifest = manifest.map_err(|error| format!("Cargo.toml: {error}"))?;
    let line = |line: &str| line.strip_prefix("rust-version = ").map(str::to_owned);
    let version = manifest.lines().find_map(line);
    let version = version.ok_or("Cargo.toml names no rust-version")?;
    Ok(version.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_published_and_its_tests_are_not() {
        let crates = published().unwrap();
        for product in ["onrush", "onrush-server", "onrush-tower"] {
            assert!(crates.iter().any(|name| name == product), "{crates:?}");
        }
        assert!(!crates.iter().any(|name| name.starts_with("testing")));
        assert!(oldest_rust().unwrap().starts_with("1."));
    }
}
