//! Installs programs from Debian packages if they are missing.

use crate::shell::{Outcome, is_executable, run, which};
use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::Command,
};

/// Script that every package calls before it starts a service. Status 101 forbids the start.
const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "#!/bin/sh\nexit 101\n";

/// How long apt waits for another process that installs packages, in seconds.
const LOCK_MAX_S: &str = "600";

/// Ensures that each program of the list exists: `(program or path, Debian package)`.
///
/// As root, installs the missing packages without starting their services. Otherwise fails with
/// the command that installs all of them.
pub fn need(programs: &[(&str, &str)]) -> Outcome {
    let wanted = packages_of(programs, has);
    if wanted.is_empty() {
        return Ok(());
    }
    let install = format!(
        "apt-get install -y --no-install-recommends {}",
        wanted.join(" ")
    );
    if !is_root()? {
        return Err(format!(
            "programs are missing. Run this once:\n  sudo sh -c 'apt-get update && {install}'"
        ));
    }
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    let no_services = NoServices::new()?;
    let mut words = install.split_whitespace();
    let installed = run(Command::new(words.next().unwrap_or_default())
        .arg(format!("-oDPkg::Lock::Timeout={LOCK_MAX_S}"))
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive"));
    drop(no_services);
    installed?;
    match programs.iter().find(|(program, _)| !has(program)) {
        Some((program, package)) => Err(format!("{package} was installed without {program}")),
        None => Ok(()),
    }
}

/// Whether a program exists. A name is looked up on the `PATH`. A path must be a file; it need not
/// be executable, because it may be a module.
fn has(program: &str) -> bool {
    match program.contains('/') {
        true => Path::new(program).is_file(),
        // Servers are installed in a folder that only root's `PATH` contains.
        false => which(program).is_some() || is_executable(&Path::new("/usr/sbin").join(program)),
    }
}

/// The packages of the programs that do not exist, each once.
fn packages_of<'a>(programs: &[(&str, &'a str)], exists: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let mut wanted = Vec::new();
    for &(program, package) in programs {
        if !exists(program) && !wanted.contains(&package) {
            wanted.push(package);
        }
    }
    wanted
}

/// Whether this process has the rights of root.
pub fn is_root() -> Outcome<bool> {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let uids = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap_or_default();
    // Real, effective, saved and file system user.
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

/// Prevents packages from starting services until it is dropped. Keeps an existing policy.
struct NoServices {
    /// Whether this program wrote the policy and removes it.
    is_ours: bool,
}

impl NoServices {
    fn new() -> Outcome<NoServices> {
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(POLICY)
            .and_then(|mut file| file.write_all(POLICY_TEXT.as_bytes()));
        match written {
            Ok(()) => Ok(NoServices { is_ours: true }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Ok(NoServices { is_ours: false })
            }
            Err(error) => Err(format!("{POLICY}: {error}")),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = fs::remove_file(POLICY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_on_the_path() {
        assert!(has("sh"));
        assert!(has("/bin/sh"));
        assert!(!has("no-such-program-anywhere"));
        assert!(!has("/bin"));
    }

    #[test]
    fn a_package_is_requested_once() {
        let programs = [("a", "one"), ("b", "one"), ("c", "two"), ("d", "three")];
        assert_eq!(packages_of(&programs, |p| p == "c"), ["one", "three"]);
        assert!(packages_of(&programs, |_| true).is_empty());
    }

    #[test]
    fn existing_programs_are_not_installed() {
        assert_eq!(
            need(&[("sh", "no-such-package"), ("/bin/sh", "nor-this")]),
            Ok(())
        );
    }
}
