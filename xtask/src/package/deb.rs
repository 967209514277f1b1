//! The Debian package. dpkg-gencontrol makes its control file, and dpkg-deb builds it from a tree.

use super::{VERSION, create, empty, read, tree, trial, write};
use crate::shell::{Outcome, root, run};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Who makes the package, and when: dpkg-gencontrol needs a changelog, which is not packaged.
const CHANGED: &str = "The Onrush project <onrush@localhost>  Thu, 01 Jan 1970 00:00:00 +0000";

/// The files of the folder `DEBIAN` of a package, besides `control`: their modes.
const CONTROL_FILES: [(&str, u32); 4] = [
    ("conffiles", 0o644),
    ("postinst", 0o755),
    ("prerm", 0o755),
    ("postrm", 0o755),
];

/// Builds `onrush_VERSION_ARCHITECTURE.deb` in the folder `out`.
pub(super) fn build(program: &Path, out: &Path) -> Outcome<PathBuf> {
    let tree = tree::stage(program, out, "deb")?;
    let debian = tree.join("DEBIAN");
    create(&debian)?;
    control(&tree, out)?;
    for (name, mode) in CONTROL_FILES {
        let file = debian.join(name);
        write(&file, read(&root().join("packaging/debian").join(name))?)?;
        tree::set_mode(&file, mode)?;
    }
    let architecture = tree::said(Command::new("dpkg").arg("--print-architecture"))?;
    let package = out.join(format!("onrush_{VERSION}_{}.deb", architecture.trim()));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "--build"]);
    run(dpkg.arg(&tree).arg(&package))?;
    fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    Ok(package)
}

/// Writes the control file, with the Debian packages of the libraries that the program needs.
fn control(tree: &Path, out: &Path) -> Outcome {
    let folder = empty(out, "control")?;
    let made = |option: &str, name: &str| format!("{option}{}", folder.join(name).display());
    let changelog = format!("onrush ({VERSION}) unstable; urgency=low\n\n  * .\n\n -- {CHANGED}\n");
    write(&folder.join("changelog"), changelog)?;
    // Both read `debian/control` in their folder.
    let source = root().join("packaging");
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    shlibdeps.arg(made("-T", "libraries")).current_dir(&source);
    run(shlibdeps.arg(tree.join("usr/bin/onrush")))?;
    let mut gencontrol = Command::new("dpkg-gencontrol");
    gencontrol.arg(format!("-P{}", tree.display()));
    gencontrol.args([
        made("-T", "libraries"),
        made("-l", "changelog"),
        made("-f", "files"),
    ]);
    run(gencontrol.current_dir(&source))?;
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Installs the package, runs what was installed, and purges it. dpkg changes owners, so a user
/// other than root only unpacks it.
pub(super) fn verify(package: &Path, out: &Path) -> Outcome {
    let root = empty(out, "root")?;
    if !crate::packages::is_root()? {
        println!("not root: the package is unpacked, not installed");
        run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root))?;
        return trial::run(&mut Command::new(root.join("usr/bin/onrush")), &root, &root);
    }
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
        create(&root.join(folder))?;
    }
    write(&root.join("var/lib/dpkg/status"), "")?;
    let dpkg = || {
        let mut dpkg = Command::new("dpkg");
        // The scripts run with the programs of this machine, and the libraries are there as well.
        let options = ["--force-script-chrootless", "--force-depends"];
        dpkg.arg(format!("--root={}", root.display())).args(options);
        dpkg
    };
    run(dpkg().arg("--install").arg(package))?;
    let status = tree::said(dpkg().args(["--status", "onrush"]))?;
    let version = format!("Version: {VERSION}");
    for part in ["Status: install ok installed", &version, "Depends: libc6"] {
        if !status.contains(part) {
            return Err(format!(
                "the package is not installed with '{part}': {status}"
            ));
        }
    }
    let has_user = |line: &str| line.starts_with("onrush:");
    if !read(&root.join("etc/passwd"))?.lines().any(has_user) {
        return Err("the user onrush does not exist after the installation".to_owned());
    }
    trial::run(&mut Command::new(root.join("usr/bin/onrush")), &root, &root)?;
    run(dpkg().args(["--purge", "onrush"]))?;
    let mut left = tree::files(&root)?;
    left.retain(|file| {
        let inside = file.strip_prefix(&root).unwrap_or(file);
        let is_expected = ["var/lib/dpkg", "data"]
            .iter()
            .any(|at| inside.starts_with(at));
        !is_expected && inside.to_string_lossy().contains("onrush")
    });
    match left.first() {
        Some(file) => Err(format!("a purge leaves {}", file.display())),
        None => fs::remove_dir_all(&root).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_files_are_in_the_package() {
        let text = read(&root().join("packaging/debian/conffiles")).unwrap();
        let in_etc = tree::FILES.iter().filter(|(_, to)| to.starts_with("etc/"));
        let expected: String = in_etc.map(|(_, to)| format!("/{to}\n")).collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn the_scripts_are_valid() {
        for (name, mode) in CONTROL_FILES {
            let file = root().join("packaging/debian").join(name);
            assert!(file.is_file(), "{name}");
            if mode == 0o755 {
                assert_eq!(run(Command::new("sh").arg("-n").arg(&file)), Ok(()));
            }
        }
    }
}
