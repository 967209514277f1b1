//! The pages of docs/recipes about files: copies, large transfers, repositories of Git, and live
//! video.

use super::{Recipe, assert_same, fill, pages, recipes, tree};
use crate::program::{pattern, wait_until};
use std::fs;
use std::path::Path;

/// The size of a file; 0 if there is none.
fn size(recipe: &Recipe, name: &str) -> u64 {
    let about = fs::metadata(recipe.folder().path().join(name));
    about.map_or(0, |about| about.len())
}

#[test]
fn every_page_is_in_the_index() {
    let index = fs::read_to_string(pages().join("README.md")).expect("an index");
    for entry in fs::read_dir(pages()).expect("pages") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8");
        let is_there = name == "README.md" || index.contains(&format!("]({name})"));
        assert!(is_there, "docs/recipes/README.md has no link to {name}");
    }
}

/// The sum of the sizes of all files beneath a folder that changes meanwhile.
fn bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// A row of the comparison is "yes", is being built, or has a reason below its table.
#[test]
fn the_comparison_explains_what_is_missing() {
    let page = fs::read_to_string(pages().join("../compare.md")).expect("a page");
    let mut rows = 0;
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [feature, own, _, _, _, _, _, _] = cells[..] else {
            continue;
        };
        rows += 1;
        let is_known = matches!(own, "yes" | "not yet" | "Onrush" | "---");
        let is_explained =
            matches!(own, "no" | "part") && page.contains(&format!("\n- {feature}: "));
        assert!(is_known || is_explained, "{feature}: {own}");
    }
    assert!(rows > 60, "{rows} rows");
}

#[test]
fn wget_copies_a_folder_and_fetches_what_has_changed() {
    for mut recipe in recipes("wget", &["wget"]) {
        let (path, title) = (recipe.folder().path().to_owned(), recipe.title());
        fill(&recipe, "data");
        recipe.step();
        recipe.step();
        assert_same(&path.join("data"), &path.join("copy"), &title);
        recipe.folder().file("data/docs/index.html", "changed");
        recipe.folder().file("data/new/g.txt", "new");
        recipe.finish();
        assert_same(&path.join("data"), &path.join("copy"), &title);
        recipe.server().logs("status=304");
    }
}

#[test]
#[ignore = "nightly"] // aria2; curl continues in the short run
fn aria2_fetches_by_ranges_and_continues() {
    for mut recipe in recipes("aria2", &["aria2c", "sha256sum"]) {
        let content = pattern(1, 40 << 20);
        recipe.folder().file("data/large.bin", &content);
        recipe.step();
        let url = &recipe.server().url;
        let slow = format!(
            "aria2c -q -x16 -s16 -k1M --file-allocation=none --max-overall-download-limit=2M \
             {url}/large.bin"
        );
        recipe.interrupt(&slow, |recipe| {
            size(recipe, "large.bin.aria2") > 0 && size(recipe, "large.bin") > 1 << 20
        });
        recipe.step();
        assert!(recipe.read("large.bin") == content, "{}", recipe.title());
        assert_eq!(size(&recipe, "large.bin.aria2"), 0, "{}", recipe.title());
        recipe.finish();
        assert!(recipe.read("large.bin") == content, "{}", recipe.title());
        let ranges = recipe
            .server()
            .logs("status=206")
            .matches("status=206")
            .count();
        assert!(ranges >= 16, "{}: {ranges} ranges", recipe.title());
    }
}

#[test]
fn curl_continues_downloads_and_uploads() {
    for mut recipe in recipes("curl", &["curl"]) {
        let (path, title) = (recipe.folder().path().to_owned(), recipe.title());
        let content = pattern(1, 40 << 20);
        recipe.folder().file("data/large.bin", &content);
        recipe.folder().file("new.bin", pattern(2, 40 << 20));
        recipe.step();
        recipe.interrupt_next(|recipe| size(recipe, "large.bin") > 1 << 20);
        recipe.step();
        assert!(recipe.read("large.bin") == content, "{title}");
        // Status 416: the file is complete.
        assert_eq!(recipe.fails(), Some(22), "{title}");
        assert!(recipe.read("large.bin") == content, "{title}");
        // The object changes after the interruption.
        recipe.folder().file("large.bin", &content[..1 << 20]);
        recipe.folder().file("data/large.bin", pattern(3, 40 << 20));
        assert_eq!(recipe.fails(), Some(33), "{title}");
        assert!(recipe.read("large.bin") == content[..1 << 20], "{title}");

        recipe.interrupt_next(|_| {
            let head = fs::read_to_string(path.join("upload.head")).unwrap_or_default();
            head.to_lowercase().contains("location:") && bytes(&path.join("data/.onrush")) > 1 << 20
        });
        assert!(!path.join("data/new.bin").exists(), "{title}");
        recipe.finish();
        assert!(
            recipe.read("data/new.bin") == pattern(2, 40 << 20),
            "{title}"
        );
        let requests = recipe.server().logs("PATCH");
        assert!(!requests.contains("status=409"), "{title}");
    }
}

#[test]
fn rclone_copies_folders() {
    for mut recipe in recipes("rclone", &["rclone"]) {
        let (path, title) = (recipe.folder().path().to_owned(), recipe.title());
        fill(&recipe, "data");
        recipe.step();
        recipe.step();
        assert_same(&path.join("data"), &path.join("copy"), &title);
        fs::remove_file(path.join("data/a.txt")).expect("removed");
        recipe.folder().file("data/docs/index.html", "changed");
        recipe.again();
        assert_same(&path.join("data"), &path.join("copy"), &title);
        let listed = recipe.step();
        assert_same(&path.join("data/docs"), &path.join("docs"), &title);
        for name in tree(&path.join("data")).keys() {
            let name = name.to_str().expect("UTF-8");
            assert!(listed.lines().any(|line| line == name), "{title}: {listed}");
        }
        recipe.finish();
    }
}

#[test]
fn git_clones_and_fetches() {
    for mut recipe in recipes("git", &["git"]) {
        let title = recipe.title();
        recipe.run(
            "git config --global user.name Ann\n\
             git config --global user.email ann@example.org\n\
             git init --quiet project\n\
             cd project\n\
             echo one > file\n\
             git add file\n\
             git commit --quiet -m one\n",
        );
        for _ in ["clone", "hook", "serve", "clone"] {
            recipe.step();
        }
        assert_eq!(recipe.read("copy/file"), b"one\n", "{title}");
        // First a pack and loose objects, then a pack only.
        let push = "cd project\n\
                    echo more >> file\n\
                    git commit --quiet -a -m more\n\
                    git push --quiet ../www/project.git HEAD\n";
        recipe.run(push);
        recipe.step();
        assert_eq!(recipe.read("copy/file"), b"one\nmore\n", "{title}");
        recipe.run(push);
        recipe.run("git -C www/project.git gc --quiet\n");
        recipe.again();
        assert_eq!(recipe.read("copy/file"), b"one\nmore\nmore\n", "{title}");
        recipe.run("git -C copy fsck --strict\n");
        // A push with WebDAV and its locks.
        recipe.step();
        recipe.step();
        let (pushed, own) = (
            recipe.run("git -C www/project.git rev-parse HEAD\n"),
            recipe.run("git -C copy rev-parse HEAD\n"),
        );
        assert_eq!(pushed, own, "{title}");
        recipe.server().logs("method=UNLOCK");
        recipe.run("git -C www/project.git fsck --strict\n");
        recipe.run("git clone --quiet http://127.0.0.1:8080/project.git third\n");
        assert_eq!(
            recipe.read("third/file"),
            b"one\nmore\nmore\nthree\n",
            "{title}"
        );
        recipe.finish();
    }
}

/// The last line of a playlist whose stream has ended.
const END: &str = "#EXT-X-ENDLIST\n";

#[test]
#[ignore = "nightly"] // ffmpeg is large
fn ffmpeg_publishes_live_video() {
    for mut recipe in recipes("hls", &["ffmpeg"]) {
        let title = recipe.title();
        recipe.step();
        recipe.step();
        let path = recipe.folder().path().join("live/show/stream.m3u8");
        let list = || fs::read_to_string(&path).expect("UTF-8");
        // ffmpeg closes the connection after its last request, without having received all
        // responses. Then the kernel may discard what has just arrived (RFC 9112 §9.6).
        let has_ended = || list().ends_with(END);
        let is_lost = || recipe.server().log().contains("end=client_gone");
        wait_until(|| has_ended() || is_lost());
        if !has_ended() {
            fs::write(&path, list() + END).expect("written");
        }
        let list = list();
        let segments = tree(&recipe.folder().path().join("live/show"));
        for name in list.lines().filter(|line| !line.starts_with('#')) {
            let content = &segments[Path::new(name)];
            assert!(!content.is_empty(), "{title}: {name}");
        }
        // The playlist has four of twelve segments, and ffmpeg keeps some older ones.
        assert!(segments.len() < 10, "{title}: {:?}", segments.keys());
        recipe.finish();
        assert!(recipe.read("seen.ts").len() > 10_000, "{title}");
    }
}
