//! `cargo xtask package`: builds a Debian package and a static tarball, installs each in a folder,
//! and runs what was installed.

mod deb;
mod tarball;
mod tree;
mod trial;
#[cfg(test)]
mod units;

use crate::{
    Arguments, Failure, packages,
    shell::{Outcome, built, cargo, run, target},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The version of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The programs that make and install the packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("gzip", "gzip"),
    ("strip", "binutils"),
    ("tar", "tar"),
];

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Some(wanted) = arguments.wanted(&["deb", "tarball"])? else {
        return Ok(());
    };
    packages::need(&PROGRAMS)?;
    let out = target().join("package");
    create(&out)?;
    if wanted.has("deb") {
        run(&mut cargo("build --profile=dist -p onrush-server --bins"))?;
        let package = deb::build(&built().join("onrush"), &out)?;
        deb::verify(&package, &out)?;
        println!("{}: installed, run and removed", package.display());
    }
    if wanted.has("tarball") {
        let package = tarball::build(&tarball::program()?, &out)?;
        tarball::verify(&package, &out)?;
        println!("{}: unpacked and run", package.display());
    }
    Ok(())
}

/// An empty folder of this name beneath `out`.
fn empty(out: &Path, name: &str) -> Outcome<PathBuf> {
    let folder = out.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    create(&folder)?;
    Ok(folder)
}

fn create(folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn read(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, content: impl AsRef<[u8]>) -> Outcome {
    fs::write(file, content).map_err(|error| format!("{}: {error}", file.display()))
}
