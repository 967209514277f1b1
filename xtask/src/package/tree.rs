//! The files of a package, in the folders in which Debian expects them.

use super::{create, empty, read, write};
use crate::shell::{Outcome, capture, root, run};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Files of the repository, and their place.
pub(super) const FILES: [(&str, &str); 14] = [
    ("packaging/onrush.toml", "etc/onrush/onrush.toml"),
    (
        "packaging/systemd/onrush.service",
        "usr/lib/systemd/system/onrush.service",
    ),
    (
        "packaging/systemd/onrush.socket",
        "usr/lib/systemd/system/onrush.socket",
    ),
    (
        "packaging/systemd/onrush-https.socket",
        "usr/lib/systemd/system/onrush-https.socket",
    ),
    (
        "packaging/systemd/onrush-redirect.socket",
        "usr/lib/systemd/system/onrush-redirect.socket",
    ),
    (
        "packaging/systemd/sysusers.conf",
        "usr/lib/sysusers.d/onrush.conf",
    ),
    (
        "packaging/debian/copyright",
        "usr/share/doc/onrush/copyright",
    ),
    ("LICENSE-MIT", "usr/share/doc/onrush/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/onrush/LICENSE-APACHE"),
    ("README.md", "usr/share/doc/onrush/README.md"),
    ("CHANGELOG.md", "usr/share/doc/onrush/changelog"),
    ("SECURITY.md", "usr/share/doc/onrush/SECURITY.md"),
    (
        "packaging/monitoring/onrush-alerts.yml",
        "usr/share/doc/onrush/examples/onrush-alerts.yml",
    ),
    (
        "packaging/monitoring/grafana-dashboard.json",
        "usr/share/doc/onrush/examples/grafana-dashboard.json",
    ),
];

/// The completion scripts: the name of a shell, and the place of its script.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/onrush"),
    ("fish", "usr/share/fish/vendor_completions.d/onrush.fish"),
    ("zsh", "usr/share/zsh/vendor-completions/_onrush"),
];

const MANUALS: &str = "usr/share/man/man1";

/// Puts all files of a package into a new folder of this name beneath `out`, and returns it. The
/// program makes its manual pages and completion scripts itself.
pub(super) fn stage(program: &Path, out: &Path, name: &str) -> Outcome<PathBuf> {
    let tree = empty(out, name)?;
    for (from, to) in FILES {
        let content = read(&root().join(from))?;
        place(&tree, to, content.as_bytes(), 0o644)?;
    }
    let binary = tree.join("usr/bin/onrush");
    let content = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    place(&tree, "usr/bin/onrush", &content, 0o755)?;
    // The messages of panics name files and lines without it.
    run(Command::new("strip").arg(&binary))?;
    for (shell, to) in COMPLETIONS {
        let script = said(Command::new(&binary).args(["--completions", shell]))?;
        place(&tree, to, script.as_bytes(), 0o644)?;
    }
    let manuals = tree.join(MANUALS);
    create(&manuals)?;
    said(Command::new(&binary).arg(format!("--man={}", manuals.display())))?;
    let compressed = files(&manuals)?
        .into_iter()
        .chain([tree.join("usr/share/doc/onrush/changelog")]);
    run(Command::new("gzip").arg("-9n").args(compressed))?;
    for file in files(&manuals)? {
        set_mode(&file, 0o644)?;
    }
    Ok(tree)
}

/// All files beneath a folder, sorted.
pub(super) fn files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(files(&path)?),
            false => found.push(path),
        }
    }
    found.sort();
    Ok(found)
}

/// Writes a file and the folders above it, whatever the umask is.
fn place(tree: &Path, to: &str, content: &[u8], mode: u32) -> Outcome {
    let file = tree.join(to);
    let folder = file.parent().unwrap_or(tree);
    create(folder)?;
    for above in folder
        .ancestors()
        .take_while(|above| above.starts_with(tree))
    {
        set_mode(above, 0o755)?;
    }
    write(&file, content)?;
    set_mode(&file, mode)
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Outcome {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The output of a command that must succeed.
pub(super) fn said(command: &mut Command) -> Outcome<String> {
    // The settings of the developer are not those of the package.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ONRUSH_") {
            command.env_remove(name);
        }
    }
    match capture(command)? {
        (true, text) => Ok(text),
        (false, text) => Err(format!("`{}` failed: {text}", crate::shell::shown(command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_exists() {
        for (from, _) in FILES {
            assert!(root().join(from).is_file(), "{from}");
        }
    }

    #[test]
    fn the_package_has_all_units() {
        for unit in files(&root().join("packaging/systemd")).unwrap() {
            let name = format!("packaging/systemd/{}", unit.file_name().unwrap().display());
            assert!(FILES.iter().any(|(from, _)| *from == name), "{name}");
        }
    }
}
