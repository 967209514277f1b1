//! The page of a folder in Chromium: `browser/page.py` drives it. Every feature is used, with
//! hostile names, with 10,000 entries, without scripts, and on a small screen; axe-core finds no
//! problem of accessibility.

mod program;

use program::{Folder, Server, browser, is_installed};

#[test]
fn chromium_uses_every_feature_of_the_page() {
    if !is_installed("chromium") {
        return;
    }
    let folder = Folder::new();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--allow", "put,delete"]);
    browser::run("page.py", &[&server.url, data.to_str().expect("UTF-8")]);
}
