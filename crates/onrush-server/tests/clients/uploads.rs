//! 32 simultaneous curls PUT 40 MB each and GET them back: identical, in bounded memory, per
//! driver.

use crate::program::{Folder, Server, drivers, is_installed, output_within, pattern};
use std::process::Command;
use std::time::{Duration, Instant};

const CLIENTS: usize = 32;
const BYTES: usize = 40_000_000;
const PEAK_KIB_MAX: u64 = 64 * 1024;
const LONG: Duration = Duration::from_secs(120);

/// Runs one shell script for each client, all at the same time.
fn all_at_once(script: &str, arguments: impl Fn(usize) -> Vec<String> + Sync) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let arguments = &arguments;
            scope.spawn(move || {
                let mut shell = Command::new("sh");
                shell.args(["-c", script, "sh"]).args(arguments(client));
                let output = output_within(&mut shell, LONG);
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "client {client}: {said}");
            });
        }
    });
}

#[test]
#[ignore = "nightly"] // it uploads more than a gigabyte
fn many_large_uploads_are_stored_correctly_in_bounded_memory() {
    if !is_installed("curl") {
        return;
    }
    let sources = Folder::new();
    for client in 0..CLIENTS {
        sources.file(&client.to_string(), pattern(client as u64, BYTES));
    }
    let source = |client: usize| {
        let path = sources.path().join(client.to_string());
        path.to_str().expect("UTF-8").to_owned()
    };
    for driver in drivers() {
        let served = Folder::new();
        let server = Server::start(served.path(), &["--allow", "put", "--driver", driver]);
        let url = |client: usize| format!("{}/folder-{}/{client}", server.url, client % 4);
        let begun = Instant::now();
        all_at_once(
            "test \"$(curl -q -sS --max-time 110 -w '%{http_code}' -T \"$1\" \"$2\")\" = 201",
            |client| vec![source(client), url(client)],
        );
        let put = begun.elapsed();
        let put_peak = server.peak_kib();
        let begun = Instant::now();
        all_at_once(
            "curl -q -sS --fail --max-time 110 \"$2\" | cmp - \"$1\"",
            |client| vec![source(client), url(client)],
        );
        let get = begun.elapsed();
        let peak = server.peak_kib();
        println!("{driver}: put {put:?}, get {get:?}, peak {put_peak} KiB, then {peak} KiB");
        assert!(peak < PEAK_KIB_MAX, "{driver}: {peak} KiB");
    }
}
