//! Bazel with the build cache as its remote cache: what one machine builds, another one finds.

use crate::program::plain::{get, printed};
use crate::program::{Folder, Server, is_installed, output_within};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Bazel starts a Java program first.
const BUILD_TIMEOUT: Duration = Duration::from_secs(300);

/// Builds the workspace on a machine of its own. Returns what Bazel says.
fn build(workspace: &Path, root: &Path, cache: &str) -> String {
    let mut command = Command::new("bazel");
    command
        .current_dir(workspace)
        .arg(format!("--output_user_root={}", root.display()))
        .args(["--batch", "--nohome_rc", "build"])
        .args(["--color=no", "--curses=no", "--jobs=2"])
        .args(["--spawn_strategy=local", "--nosandbox_debug"])
        .arg(format!("--remote_cache={cache}"))
        .arg("//:all");
    let output = output_within(&mut command, BUILD_TIMEOUT);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
#[ignore = "nightly"] // Bazel is large
fn bazel_finds_what_another_machine_has_built() {
    if !is_installed("bazel") {
        return;
    }
    let (folder, roots) = (Folder::new(), Folder::new());
    folder.file("WORKSPACE", "");
    let rules = (0..8).map(|number| {
        format!(
            "genrule(name = \"n{number}\", outs = [\"o{number}\"], \
             cmd = \"seq 1 {number}00000 > $@; date +%N >> $@\")\n"
        )
    });
    folder.file("BUILD", rules.collect::<String>());
    let cache = roots.path().join("cache");
    let server = Server::start(&cache, &["--cache", "64MiB", "--admin", "0"]);
    let url = format!("{}/linux", server.url);
    let root = |name: &str| roots.path().join(name);
    let first = build(folder.path(), &root("1"), &url);
    assert!(!first.contains("remote cache hit"), "{first}");
    let built = |number| {
        let path = folder.path().join(format!("bazel-bin/o{number}"));
        std::fs::read(path).expect("it is built")
    };
    let before: Vec<Vec<u8>> = (0..8).map(built).collect();
    let second = build(folder.path(), &root("2"), &url);
    assert!(second.contains("8 remote cache hit"), "{second}");
    let after: Vec<Vec<u8>> = (0..8).map(built).collect();
    assert!(before == after);
    let metrics = get(printed(&server, "admin"), "/-/metrics", "localhost");
    let hits = metrics
        .lines()
        .find_map(|line| line.strip_prefix("onrush_cache_requests_total{result=\"hit\"} "));
    let hits: u64 = hits.expect("a sample").parse().expect("a number");
    assert!(hits >= 16, "the result and the file of each rule: {hits}");
}
