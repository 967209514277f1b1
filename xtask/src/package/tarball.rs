//! The static tarball, which runs on every Linux of this architecture. Its program contains musl,
//! because a static program with glibc still loads libraries to resolve host names.

use super::{VERSION, empty, read, tree, trial, write};
use crate::{
    packages,
    shell::{Outcome, capture, cargo, run, target},
};
use std::{
    env::consts::ARCH,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Builds the static program. Installs what the build needs.
pub(super) fn program() -> Outcome<PathBuf> {
    let triple = format!("{ARCH}-unknown-linux-musl");
    packages::need(&[("musl-gcc", "musl-tools")])?;
    let (_, installed) = capture(Command::new("rustup").args(["target", "list", "--installed"]))?;
    if !installed.lines().any(|line| line == triple) {
        run(Command::new("rustup").args(["target", "add", &triple]))?;
    }
    let mut build = cargo("build --profile=dist -p onrush-server --bins --target");
    // C code of dependencies.
    let compiler = format!("CC_{}", triple.replace('-', "_"));
    run(build.arg(&triple).env(compiler, "musl-gcc"))?;
    Ok(target().join(triple).join("dist/onrush"))
}

/// Builds `onrush-VERSION-ARCHITECTURE-linux.tar.gz` in the folder `out`, to be unpacked in
/// `/usr/local`.
pub(super) fn build(program: &Path, out: &Path) -> Outcome<PathBuf> {
    let tree = tree::stage(program, out, "tarball")?;
    let usr = tree.join("usr");
    move_up(&usr)?;
    for unit in tree::files(&tree.join("lib/systemd/system"))? {
        let text = read(&unit)?;
        let text = text.replace("/usr/bin/", "/usr/local/bin/");
        write(
            &unit,
            text.replace("/etc/onrush/", "/usr/local/etc/onrush/"),
        )?;
    }
    let name = format!("onrush-{VERSION}-{ARCH}-linux");
    let folder = empty(out, &name)?;
    fs::remove_dir(&folder)
        .and_then(|()| fs::rename(&tree, &folder))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let package = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--numeric-owner", "--sort=name"]);
    tar.args(["--create", "--gzip", "--file"]).arg(&package);
    run(tar.arg("--directory").arg(out).arg(&name))?;
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(package)
}

/// Moves the entries of a folder into the one above, and removes it.
fn move_up(folder: &Path) -> Outcome {
    let above = folder.parent().unwrap_or(folder);
    let moved = || {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            fs::rename(entry.path(), above.join(entry.file_name()))?;
        }
        fs::remove_dir(folder)
    };
    moved().map_err(|error| format!("{}: {error}", folder.display()))
}

/// Unpacks the tarball and runs it. As root, the program sees no other file of this machine, as in
/// a container without a base image.
pub(super) fn verify(package: &Path, out: &Path) -> Outcome {
    let root = empty(out, "root")?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(package);
    tar.args(["--strip-components=1", "--no-same-owner", "--directory"]);
    run(tar.arg(&root))?;
    match packages::is_root()? {
        true => {
            let mut chroot = Command::new("chroot");
            trial::run(chroot.arg(&root).arg("/bin/onrush"), &root, Path::new("/"))?;
        }
        false => {
            let mut program = Command::new(root.join("bin/onrush"));
            trial::run(&mut program, &root, &root)?;
        }
    }
    fs::remove_dir_all(&root).map_err(|error| format!("{}: {error}", root.display()))
}
