//! Checks which crate depends on which. Cargo enforces the manifests; this check limits what the
//! manifests allow. It ignores dependencies of tests.

use super::{Complaint, source::Source};

/// The crates below `crates/`, each with those it may depend on. What tests share is not a part of
/// the product, and only dependencies of tests name it.
const ALLOWED: [(&str, &[&str]); 11] = [
    ("testing", &["onrush-proto"]),
    ("testing-s3", &["onrush-remote", "onrush-store"]),
    ("onrush-rt", &[]),
    ("onrush-coroutine", &["onrush-rt"]),
    ("onrush-proto", &[]),
    ("onrush", &["onrush-coroutine", "onrush-rt", "onrush-proto"]),
    ("onrush-tower", &["onrush", "onrush-proto"]),
    ("onrush-store", &["onrush-rt"]),
    ("onrush-remote", &["onrush-store"]),
    (
        "onrush-files",
        &["onrush", "onrush-store", "onrush-rt", "onrush-proto"],
    ),
    (
        "onrush-server",
        &[
            "onrush",
            "onrush-files",
            "onrush-remote",
            "onrush-store",
            "onrush-rt",
            "onrush-proto",
        ],
    ),
];

pub(super) fn check(files: &[Source], found: &mut Vec<Complaint>) {
    for file in files {
        let manifest = file.path.strip_suffix("/Cargo.toml");
        let Some(folder) = manifest.and_then(|path| path.strip_prefix("crates/")) else {
            continue;
        };
        match ALLOWED.iter().find(|(name, _)| *name == folder) {
            Some((_, allowed)) => check_manifest(file, folder, allowed, found),
            None => {
                let message = format!("`{folder}` is not one of the product's crates");
                found.push(Complaint::new(&file.path, 1, message));
            }
        }
    }
}

fn check_manifest(file: &Source, folder: &str, allowed: &[&str], found: &mut Vec<Complaint>) {
    let mut section = "";
    for (at, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if section == "package" && key == "name" && !line.ends_with(&format!("\"{folder}\"")) {
            let message = format!("the crate in the folder `{folder}` must have the same name");
            found.push(Complaint::new(&file.path, at + 1, message));
        }
        // `[dependencies]`, `[dependencies.NAME]`, `[target.'…'.dependencies]`
        let used = match section.split_once("dependencies") {
            None => continue,
            Some((before, _)) if before.ends_with("dev-") => continue,
            Some((_, "")) => key,
            Some((_, name)) => name.trim_start_matches('.'),
        };
        let is_own = ALLOWED.iter().any(|(name, _)| *name == used);
        let is_new = key == used || line.starts_with('[');
        if is_own && is_new && !allowed.contains(&used) {
            let message = format!("`{folder}` may not depend on `{used}`");
            found.push(Complaint::new(&file.path, at + 1, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(folder: &str, text: &str) -> Vec<usize> {
        let mut found = Vec::new();
        let path = format!("crates/{folder}/Cargo.toml");
        check(&[Source::new(path, text.to_owned())], &mut found);
        found.into_iter().map(|complaint| complaint.line).collect()
    }

    #[test]
    fn dependencies_point_downwards() {
        let text = "[package]\nname = \"onrush\"\n\n[dependencies]\nbytes = \"1\"\n\
            onrush-rt.workspace = true\nonrush-store = { path = \"../onrush-store\" }\n";
        assert_eq!(lines("onrush", text), [7]);
        assert_eq!(
            lines(
                "onrush-proto",
                "[dependencies]\nonrush-rt.workspace = true\n"
            ),
            [2]
        );
        assert_eq!(
            lines("onrush-store", "[dependencies]\nonrush-rt = \"0.1\"\n"),
            []
        );
    }

    #[test]
    fn every_form_of_a_dependency_is_checked() {
        let long = "[dependencies.onrush-server]\nworkspace = true\n";
        assert_eq!(lines("onrush", long), [1]);
        let build = "[build-dependencies]\nonrush-server.workspace = true\n";
        assert_eq!(lines("onrush", build), [2]);
        let target = "[target.'cfg(unix)'.dependencies]\nonrush-server.workspace = true\n";
        assert_eq!(lines("onrush", target), [2]);
        for tests in ["dev-dependencies", "target.'cfg(unix)'.dev-dependencies"] {
            let text = format!("[{tests}]\nonrush-server.workspace = true\n");
            assert_eq!(lines("onrush", &text), []);
        }
    }

    #[test]
    fn a_folder_has_the_name_of_its_crate() {
        assert_eq!(lines("onrush-extra", ""), [1]);
        assert_eq!(
            lines("onrush-rt", "[package]\nname = \"onrush-runtime\"\n"),
            [2]
        );
    }
}
