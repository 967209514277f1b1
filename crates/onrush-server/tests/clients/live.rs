//! What browsers show live: `browser/live.py` and `browser/dashboard.py` drive Chromium.

use crate::browser;
use crate::program::{Folder, Server};

#[test]
#[ignore = "nightly"] // Chromium; `clients::page` uses it in the short run
fn the_page_of_a_folder_follows_changes_over_both_versions() {
    for tls in [&[][..], &["--tls-self-signed"]] {
        let folder = Folder::new();
        let data = folder.path().join("data");
        let server = Server::start(&data, &[tls, &["--allow", "put,delete"]].concat());
        browser::run("live.py", &[&server.url, data.to_str().expect("UTF-8")]);
    }
}

#[test]
#[ignore = "nightly"] // Chromium; `clients::page` uses it in the short run
fn the_dashboard_is_live() {
    let folder = Folder::new();
    folder.file("x.txt", "content");
    let server = Server::start(folder.path(), &["--admin=same", "--workers", "2"]);
    browser::run("dashboard.py", &[&server.url]);
}
