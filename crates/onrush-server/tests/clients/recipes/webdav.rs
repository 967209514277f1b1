//! The pages of docs/recipes about WebDAV: backups and a mounted folder.

use super::{Recipe, assert_same, fill, recipes, tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Changes, adds and removes files of `documents`.
fn change(recipe: &Recipe) {
    recipe.folder().file("documents/docs/index.html", "changed");
    recipe.folder().file("documents/new/g.txt", "new");
    let removed = recipe.folder().path().join("documents/e/f/#?;=:+");
    fs::remove_file(removed).expect("removed");
}

#[test]
#[ignore = "nightly"] // restic, duplicity, davfs2
fn restic_makes_backups_and_restores() {
    for mut recipe in recipes("restic", &["restic", "rclone"]) {
        let (path, title) = (recipe.folder().path().to_owned(), recipe.title());
        fill(&recipe, "documents");
        recipe.step();
        recipe.step();
        change(&recipe);
        recipe.step();
        let documents = path.join("documents");
        assert_same(&documents, &path.join("restored/documents"), &title);
        recipe.finish();
        assert_same(&documents, &path.join("read/documents"), &title);
    }
}

#[test]
#[ignore = "nightly"] // restic, duplicity, davfs2
fn duplicity_makes_backups_and_restores() {
    for mut recipe in recipes("duplicity", &["duplicity", "gpg", "gpg-agent"]) {
        let (path, title) = (recipe.folder().path().to_owned(), recipe.title());
        fill(&recipe, "documents");
        recipe.step();
        recipe.step();
        change(&recipe);
        recipe.step();
        let status = recipe.step();
        for kind in ["Full", "Incremental"] {
            let is_kind = |line: &str| line.trim_start().starts_with(kind);
            assert_eq!(
                status.lines().filter(|line| is_kind(line)).count(),
                1,
                "{title}: {status}"
            );
        }
        assert_same(&path.join("documents"), &path.join("restored"), &title);
        recipe.finish();
        recipe.run("gpgconf --kill gpg-agent\n");
    }
}

/// A folder in which something may be mounted. A failed test must not leave it.
struct MountPoint(PathBuf);

impl MountPoint {
    /// Whether something is mounted there.
    fn is_used(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("a list");
        mounts.contains(self.0.to_str().expect("UTF-8"))
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if self.is_used() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

/// Whether this user may mount file systems of other programs.
fn can_mount() -> bool {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    let is_possible = fuse.is_ok() && rustix::process::geteuid().is_root();
    if !is_possible {
        println!("skipped: this user cannot mount file systems");
    }
    is_possible
}

#[test]
#[ignore = "nightly"] // restic, duplicity, davfs2
fn davfs2_mounts_a_folder() {
    if !can_mount() {
        return;
    }
    for mut recipe in recipes("davfs2", &["mount.davfs"]) {
        let (path, title) = (recipe.folder().path().to_owned(), recipe.title());
        let mount_point = MountPoint(path.join("mnt"));
        fill(&recipe, "documents");
        recipe.step();
        recipe.step();
        assert!(!mount_point.is_used(), "{title}");
        let (documents, served) = (path.join("documents"), path.join("data/documents"));
        assert_same(&documents, &served, &title);
        recipe.finish();
        assert!(!mount_point.is_used(), "{title}");
        let page = recipe.read("documents/docs/index.html");
        assert!(recipe.read("copy.html") == page, "{title}");
        let left = tree(&served);
        let content = tree(&documents).remove(Path::new("a.txt"));
        assert_eq!(
            left.get(Path::new("moved.txt")),
            content.as_ref(),
            "{title}"
        );
        let removed = ["a.txt", "docs/index.html"].map(|name| left.contains_key(Path::new(name)));
        assert_eq!(removed, [false; 2], "{title}: {:?}", left.keys());
        assert_eq!(left.len(), 4, "{title}: {:?}", left.keys());
        recipe.server().logs("LOCK");
        // `df` shows the quota properties. Without them, davfs2 shows 26 GB.
        recipe.run("onrush ./data --webdav --allow put --quota /=50MB\n");
        let mount = "printf '\\n\\n' | mount -t davfs http://127.0.0.1:8080/ mnt >/dev/null\n";
        let space = recipe.run(&format!(
            "{mount}df -B1 --output=size mnt\numount mnt >/dev/null\n"
        ));
        let bytes = space
            .lines()
            .nth(1)
            .and_then(|bytes| bytes.trim().parse::<u64>().ok());
        let is_quota = bytes.is_some_and(|bytes| (49_900_000..50_100_000).contains(&bytes));
        assert!(is_quota, "{title}: {space}");
    }
}
