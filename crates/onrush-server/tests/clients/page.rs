//! The page of a folder in Chromium, and most of it in Firefox: the programs in `browser/` drive
//! them. Every feature is used, with hostile names, with 10,000 entries, without scripts, and on a
//! small screen; axe-core finds no problem of accessibility. Over HTTPS, browsers use HTTP/2.

use crate::browser;
use crate::program::{Folder, Server};

/// Runs a program of `browser/` with a server that has these arguments.
fn drive(program: &str, arguments: &[&str]) {
    serve(arguments, |of| browser::run(program, of));
}

/// As [`drive`], over HTTPS, where browsers use HTTP/2. The programs check that.
fn drive_over_http2(program: &str, arguments: &[&str]) {
    drive(program, &[arguments, &["--tls-self-signed"]].concat());
}

/// Passes the URL of a server with these arguments, and the path of its folder.
fn serve(arguments: &[&str], with: impl FnOnce(&[&str])) {
    let folder = Folder::new();
    let data = folder.path().join("data");
    let server = Server::start(&data, arguments);
    with(&[&server.url, data.to_str().expect("UTF-8")]);
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

#[test]
#[ignore = "nightly"] // as the tests above
fn chromium_uses_the_page_over_http2() {
    drive_over_http2("page.py", &["--allow", "put,delete"]);
    drive_over_http2("moves.py", &["--allow", "put,delete"]);
    drive_over_http2("upload_only.py", &["--upload-only"]);
}

#[test]
#[ignore = "nightly"] // as the tests above
fn chromium_continues_uploads_over_http2() {
    drive_over_http2("uploads.py", &["--allow", "put,delete"]);
}

#[test]
#[ignore = "nightly"] // Firefox, and its driver from PyPI
fn firefox_uploads_follows_changes_and_downloads_over_both_versions() {
    for tls in [&["--tls-self-signed"][..], &[]] {
        let arguments = [tls, &["--allow", "put,delete"]].concat();
        serve(&arguments, |of| browser::run_firefox("firefox.py", of));
    }
}
