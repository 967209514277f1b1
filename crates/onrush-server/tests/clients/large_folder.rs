//! A folder with a million files: curl, tar and rclone get all of it, and the server needs little
//! memory.

use crate::program::{Folder, Server, is_installed, output_within};
use std::fs::File;
use std::process::Command;
use std::time::Duration;

const COUNT: usize = 1_000_000;
/// It is many times what an idle machine needs.
const TIME: Duration = Duration::from_secs(1800);
/// What the server needs at most, in KiB.
const PEAK_KIB_MAX: u64 = 64 << 10;

/// What a shell command prints.
fn shell(command: &str) -> String {
    let output = output_within(Command::new("sh").args(["-c", command]), TIME);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
#[ignore = "nightly"] // a million files
fn a_million_files_are_listed_whole_in_little_memory() {
    if !["curl", "tar", "rclone"].into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    folder.file("small/one", b"1");
    let big = folder.path().join("big");
    std::fs::create_dir(&big).expect("a folder");
    for number in 0..COUNT {
        File::create(big.join(format!("file-{number:07}.bin"))).expect("a file");
    }
    let server = Server::start(folder.path(), &["--webdav"]);
    let url = format!("{}/big/", server.url);
    let small = || {
        let page = shell(&format!("curl -sSf '{}/small/'", server.url));
        assert!(page.contains("<a href=\"one\">"), "{page}");
    };
    let html = shell(&format!(
        "curl -sSf '{url}' | grep -c '^<tr><td><a href=\"file-'"
    ));
    assert_eq!(html.parse(), Ok(COUNT));
    let tar = shell(&format!(
        "curl -sSf '{url}?archive=tar' | tar -t | sort -u | wc -l"
    ));
    assert_eq!(tar.parse(), Ok(COUNT + 1));
    let propfind = format!(
        "curl -sSf -X PROPFIND -H 'Depth: 1' '{url}' | grep -o '<D:href>[^<]*' | sort -u | wc -l"
    );
    assert_eq!(shell(&propfind).parse(), Ok(COUNT + 1));
    let rclone = format!("rclone size --http-no-head --http-url '{url}' :http:");
    let size = shell(&rclone);
    assert!(size.contains(&format!("({COUNT})")), "{size}");
    small();
    // Clients that stop reading in the middle leave room for others.
    let mut held: Vec<_> = (0..4)
        .map(|_| {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--limit-rate", "1k", "-o", "/dev/null", &url]);
            curl.spawn().expect("curl")
        })
        .collect();
    let all = shell(&format!(
        "curl -sSf '{url}' | grep -c '^<tr><td><a href=\"file-'"
    ));
    assert_eq!(all.parse(), Ok(COUNT));
    small();
    for curl in &mut held {
        let _ = curl.kill();
        let _ = curl.wait();
    }
    let peak_kib = server.peak_kib();
    assert!(peak_kib <= PEAK_KIB_MAX, "{peak_kib} KiB");
}
