//! The files that make this folder an entry.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The profiles that this test binary checks.
const CHECKED: [&str; 9] = [
    "baseline",
    "echo-ws",
    "json",
    "json-comp",
    "json-tls",
    "limited-conn",
    "pipelined",
    "static",
    "upload",
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(file(name)).unwrap()
}

#[test]
fn the_entry_names_the_profiles_that_are_checked() {
    let meta: Value = serde_json::from_str(&read("meta.json")).unwrap();
    for name in ["display_name", "language", "engine", "description", "repo"] {
        assert!(meta[name].is_string(), "{name}");
    }
    assert_eq!(meta["type"], "tuned");
    assert!(meta["enabled"].is_boolean() && meta["maintainers"].is_array());
    let named = meta["tests"].as_array().unwrap().iter();
    let named: BTreeSet<&str> = named.filter_map(Value::as_str).collect();
    assert_eq!(named, BTreeSet::from(CHECKED));
    let readme = read("README.md");
    for profile in CHECKED {
        assert!(readme.contains(&format!("| `{profile}` |")), "{profile}");
    }
}

#[test]
fn the_image_is_built_from_this_package() {
    let (image, package) = (read("Dockerfile"), env!("CARGO_PKG_NAME"));
    assert!(image.contains(&format!(" -p {package}")), "{image}");
    assert!(
        image.contains(&format!("/target/dist/{package} ")),
        "{image}"
    );
    assert!(image.contains("EXPOSE 8080 8081"), "{image}");
}

/// HttpArena calls `build.sh` instead of docker if it is executable, from its own folder, where the
/// entry is a link.
#[test]
fn the_build_script_finds_the_workspace_through_a_link() {
    let mode = fs::metadata(file("build.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111);
    let folder = testing::TempDir::new();
    let entry = folder.path().join("onrush");
    std::os::unix::fs::symlink(env!("CARGO_MANIFEST_DIR"), &entry).unwrap();
    // In place of docker, a program that tells where and how it was called.
    let docker = folder.path().join("docker");
    fs::write(&docker, "#!/bin/sh\necho \"$PWD $*\"\n").unwrap();
    fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(entry.join("build.sh"))
        .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
        .current_dir(folder.path())
        .output()
        .unwrap();
    let workspace = file("../..").canonicalize().unwrap();
    let expected = format!(
        "{} build -t httparena-onrush -f bench/httparena/Dockerfile .\n",
        workspace.display()
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert!(output.status.success());
}
