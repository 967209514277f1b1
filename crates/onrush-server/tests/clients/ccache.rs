//! ccache with the build cache as its remote storage: what one machine compiles, another one finds.

use crate::program::plain::{get, printed};
use crate::program::{Folder, Server, TIMEOUT, is_installed, output_within};
use std::path::Path;
use std::process::Command;

/// Compiles `source` to `object` on a machine of its own: with an empty local cache.
fn compile(server: &str, source: &Path, object: &Path) {
    let local = Folder::new();
    let mut command = Command::new("ccache");
    command
        .env("CCACHE_DIR", local.path())
        .env("CCACHE_REMOTE_STORAGE", server)
        .env("CCACHE_REMOTE_ONLY", "true")
        .env("CCACHE_DEBUGDIR", local.path())
        .env_remove("CCACHE_DISABLE")
        .args(["cc", "-c", "-O1", "-o"])
        .args([object, source]);
    let output = output_within(&mut command, 2 * TIMEOUT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn requests(server: &Server, result: &str) -> u64 {
    let metrics = get(printed(server, "admin"), "/-/metrics", "localhost");
    let name = format!("onrush_cache_requests_total{{result=\"{result}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    value.expect("a sample").parse().expect("a number")
}

#[test]
fn ccache_finds_what_another_machine_has_compiled() {
    if !is_installed("ccache") || !is_installed("cc") {
        return;
    }
    let folder = Folder::new();
    let source = folder.file("a.c", "int add(int a, int b) { return a + b; }\n");
    let access = ["--auth", "ann:secret"];
    for (more, layout) in [
        (&[][..], ""),
        (&[], "/team|layout=flat"),
        (&[], "/bazel|layout=bazel"),
        (&access, "/users"),
    ] {
        let arguments = [&["--cache", "64MiB", "--admin", "0"], more].concat();
        let server = Server::start(&folder.path().join("cache"), &arguments);
        let login = if more.is_empty() { "" } else { "ann:secret@" };
        let url = format!("http://{login}{}{layout}", server.address());
        let objects = ["1.o", "2.o"].map(|name| folder.path().join(name));
        compile(&url, &source, &objects[0]);
        let before = requests(&server, "hit");
        assert!(requests(&server, "miss") > 0, "{url}");
        compile(&url, &source, &objects[1]);
        assert!(
            requests(&server, "hit") >= before + 2,
            "{url}: no manifest or no result"
        );
        let [first, second] = objects.map(|path| std::fs::read(path).expect("an object file"));
        assert!(first == second);
        drop(server);
        std::fs::remove_dir_all(folder.path().join("cache")).expect("removed");
    }
}
