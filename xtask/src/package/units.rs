//! Tests of the unit files with the programs of systemd.

use super::{create, read, tree, write};
use crate::shell::{Outcome, capture, root, target, which};
use std::{fs, path::PathBuf, process::Command};

/// Ten times the highest exposure of the service that is accepted: `OK` in the words of systemd.
const EXPOSURE_MAX: &str = "20";

/// Copies of the units that name a program of this machine.
struct Units(PathBuf);

impl Units {
    fn new() -> Outcome<Units> {
        let folder = target().join(format!("tmp/units-{}", std::process::id()));
        create(&folder)?;
        for unit in tree::files(&root().join("packaging/systemd"))? {
            let text = read(&unit)?.replace("/usr/bin/onrush", "/bin/true");
            let name = unit.file_name().unwrap_or_default();
            write(&folder.join(name), text)?;
        }
        Ok(Units(folder))
    }

    /// What systemd-analyze prints, if it succeeds.
    fn analyze(&self, arguments: &[&str], endings: &[&str]) -> Outcome<String> {
        let mut files = tree::files(&self.0)?;
        files.retain(|file| {
            let ending = file.extension().unwrap_or_default();
            endings.iter().any(|wanted| ending == *wanted)
        });
        let mut analyze = Command::new("systemd-analyze");
        match capture(analyze.args(arguments).args(files))? {
            (true, text) => Ok(text),
            (false, text) => Err(text),
        }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn systemd_accepts_the_units() {
    if which("systemd-analyze").is_none() {
        assert!(std::env::var_os("CI").is_none(), "systemd is missing");
        println!("skipped: systemd is missing");
        return;
    }
    let units = Units::new().unwrap();
    let verify = ["verify", "--man=no", "--recursive-errors=no"];
    let complaints = units.analyze(&verify, &["service", "socket"]);
    assert_eq!(complaints, Ok(String::new()));
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let security = ["security", "--offline=true", "--no-pager", &threshold];
    let report = units.analyze(&security, &["service"]).unwrap();
    assert!(report.contains("Overall exposure level"), "{report}");
}
