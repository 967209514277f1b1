//! The page of a folder in Chromium: the programs in `browser/` drive it. Every feature is used,
//! with hostile names, with 10,000 entries, without scripts, and on a small screen; axe-core finds
//! no problem of accessibility.

use crate::browser;
use crate::program::{Folder, Server};

/// Runs a program of `browser/` with a server that has these arguments.
fn drive(program: &str, arguments: &[&str]) {
    let folder = Folder::new();
    let data = folder.path().join("data");
    let server = Server::start(&data, arguments);
    browser::run(program, &[&server.url, data.to_str().expect("UTF-8")]);
}

#[test]
#[ignore = "nightly"] // half a minute of Chromium; a shorter test of the page follows
fn chromium_uses_every_feature_of_the_page() {
    drive("page.py", &["--allow", "put,delete"]);
}

#[test]
fn chromium_renames_and_moves() {
    drive("moves.py", &["--allow", "put,delete"]);
}

#[test]
#[ignore = "nightly"] // Chromium; one test of the page is in the short run
fn chromium_uploads_without_the_right_to_list() {
    drive("upload_only.py", &["--upload-only"]);
}

#[test]
#[ignore = "nightly"] // Chromium; one test of the page is in the short run
fn chromium_continues_large_uploads() {
    drive("uploads.py", &["--allow", "put,delete"]);
}
