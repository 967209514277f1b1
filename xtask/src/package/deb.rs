//! The Debian package. dpkg-deb builds it from a tree of files and a control file.

use super::{VERSION, create, empty, read, tree, trial, write};
use crate::shell::{Outcome, root, run};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

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
    let mut bytes = 0;
    for file in tree::files(&tree)? {
        bytes += fs::metadata(&file).map_or(0, |meta| meta.len());
    }
    let architecture = tree::said(Command::new("dpkg").arg("--print-architecture"))?;
    let template = read(&root().join("packaging/debian/control"))?;
    let depends = libraries(&tree.join("usr/bin/onrush"), out)?;
    let values = [
        ("VERSION", VERSION),
        ("ARCHITECTURE", architecture.trim()),
        ("INSTALLED_KIB", &bytes.div_ceil(1024).to_string()),
        ("DEPENDS", &depends),
    ];
    let debian = tree.join("DEBIAN");
    create(&debian)?;
    write(&debian.join("control"), control(&template, &values)?)?;
    for (name, mode) in CONTROL_FILES {
        let file = debian.join(name);
        write(&file, read(&root().join("packaging/debian").join(name))?)?;
        tree::set_mode(&file, mode)?;
    }
    let package = out.join(format!("onrush_{VERSION}_{}.deb", architecture.trim()));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "--build"]);
    run(dpkg.arg(&tree).arg(&package))?;
    fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    Ok(package)
}

/// The control file. Fails if the template has another value.
fn control(template: &str, values: &[(&str, &str)]) -> Outcome<String> {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    match text.split_whitespace().find(|word| word.starts_with('@')) {
        Some(word) => Err(format!("packaging/debian/control: unknown value {word}")),
        None => Ok(text),
    }
}

/// The Debian packages of the libraries that a program needs, with their versions.
fn libraries(program: &Path, out: &Path) -> Outcome<String> {
    // It reads a control file of the source, which this package does not have.
    let folder = empty(out, "shlibdeps")?;
    create(&folder.join("debian"))?;
    let source =
        "Source: onrush\nMaintainer: x <x@localhost>\n\nPackage: onrush\nArchitecture: any\n";
    write(&folder.join("debian/control"), source)?;
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    let text = tree::said(shlibdeps.arg("-O").arg(program).current_dir(&folder))?;
    let mut lines = text.lines();
    let depends = lines.find_map(|line| line.strip_prefix("shlibs:Depends="));
    let _ = fs::remove_dir_all(&folder);
    depends
        .map(str::to_owned)
        .ok_or_else(|| format!("dpkg-shlibdeps found no libraries: {text}"))
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
    if !status.contains("Status: install ok installed") {
        return Err(format!("the package is not installed: {status}"));
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

    const VALUES: [(&str, &str); 4] = [
        ("VERSION", "1.2.3"),
        ("ARCHITECTURE", "amd64"),
        ("INSTALLED_KIB", "7"),
        ("DEPENDS", "libc6"),
    ];

    #[test]
    fn the_control_file_is_complete() {
        let template = read(&root().join("packaging/debian/control")).unwrap();
        let text = control(&template, &VALUES).unwrap();
        for line in [
            "Version: 1.2.3\n",
            "Architecture: amd64\n",
            "Installed-Size: 7\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("Depends: libc6, "), "{text}");
        assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text}");
        assert!(control("Version: @OTHER@\n", &VALUES).is_err());
    }

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
