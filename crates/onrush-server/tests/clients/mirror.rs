//! 20,000 real files of this machine, fetched by `wget -r` from the HTML listing and by curl from
//! the JSON listing, must arrive unchanged, on each driver.

use crate::program::{Folder, Server, drivers, is_installed, output_within};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const FILES: usize = 20_000;
/// The minimum without `CI`, on a machine with fewer files.
const FILES_MIN: usize = 5_000;
/// The maximum sizes in total and per file, because copies are made. Other tests use large files.
const BYTES_MAX: u64 = 768 << 20;
const FILE_BYTES_MAX: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(300);
/// The number of simultaneous clients.
const CLIENTS: usize = 4;

/// The files below `from` that the server shows, sorted, as relative paths.
fn walk(from: &Path, below: &Path, found: &mut Vec<(PathBuf, u64)>) {
    let Ok(entries) = fs::read_dir(from.join(below)) else {
        return;
    };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(text) = name.to_str() else { continue };
        let Ok(about) = entry.metadata() else {
            continue;
        };
        // wget changes such names on disk.
        if text.starts_with('.') || text.contains(char::is_control) {
            continue;
        }
        let path = below.join(text);
        if about.is_dir() {
            walk(from, &path, found);
        } else if about.is_file() {
            found.push((path, about.len()));
        }
    }
}

/// Folders with many files on most machines, the best ones first.
fn sources() -> Vec<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = sysroot
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok());
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"))
        .unwrap_or_default();
    let mut all = vec![PathBuf::from("/usr/share")];
    all.extend(sysroot.map(|path| PathBuf::from(path.trim())));
    all.push(PathBuf::from(home).join("registry/src"));
    all.extend(["/usr/lib", "/usr/include", "/etc"].map(PathBuf::from));
    all
}

/// Gathers files into `into`, by hard links if possible. Returns their paths there.
fn gather(into: &Path) -> Vec<PathBuf> {
    let mut gathered = Vec::new();
    let mut bytes = 0;
    for (at, source) in sources().iter().enumerate() {
        let mut found = Vec::new();
        walk(source, Path::new(""), &mut found);
        // At most half from each of the first two, so that both are used.
        let most = if at < 2 { FILES / 2 } else { FILES };
        let mut taken = 0;
        for (path, size) in found {
            if taken == most || gathered.len() == FILES {
                break;
            }
            let to = into.join(at.to_string()).join(&path);
            if size > FILE_BYTES_MAX || bytes + size > BYTES_MAX {
                continue;
            }
            fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
            let from = source.join(&path);
            if fs::hard_link(&from, &to)
                .or_else(|_| fs::copy(&from, &to).map(|_| ()))
                .is_ok()
            {
                bytes += size;
                taken += 1;
                gathered.push(to.strip_prefix(into).expect("below").to_owned());
            } else {
                let _ = fs::remove_file(&to);
            }
        }
    }
    let in_ci = std::env::var_os("CI").is_some();
    if in_ci {
        fill_up(into, &mut gathered, FILES);
    }
    println!("{} files, {} MiB", gathered.len(), bytes >> 20);
    let least = if in_ci { FILES } else { FILES_MIN };
    assert!(gathered.len() >= least, "this machine has too few files");
    gathered
}

/// If the machine has fewer than `wanted` files, adds copies under other names.
fn fill_up(into: &Path, gathered: &mut Vec<PathBuf>, wanted: usize) {
    let found = gathered.len();
    for at in 0..wanted.saturating_sub(found) {
        let Some(original) = gathered.get(at).cloned() else {
            break;
        };
        let again = Path::new("again")
            .join(format!("{}", at / found))
            .join(&original);
        let to = into.join(&again);
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        let linked = fs::hard_link(into.join(&original), &to);
        let made = linked.or_else(|_| fs::copy(into.join(&original), &to).map(|_| ()));
        made.expect("there is room for a copy");
        gathered.push(again);
    }
}

#[test]
fn few_files_are_copied_under_other_names() {
    let folder = Folder::new();
    let names = ["0/a", "0/b/c", "1/d"].map(PathBuf::from);
    for name in &names {
        folder.file(name.to_str().expect("UTF-8"), name.as_os_str().as_bytes());
    }
    let mut gathered = names.to_vec();
    fill_up(folder.path(), &mut gathered, 11);
    gathered.sort();
    gathered.dedup();
    assert_eq!(gathered.len(), 11, "{gathered:?}");
    for path in &gathered {
        let content = fs::read(folder.path().join(path)).expect("it is there");
        assert!(path.as_os_str().as_bytes().ends_with(&content), "{path:?}");
    }
}

fn same(served: &Path, copy: &Path, what: &Path) {
    let copied = fs::read(copy).unwrap_or_else(|error| panic!("{}: {error}", what.display()));
    let original = fs::read(served).expect("the served file");
    assert!(copied == original, "{} differs", what.display());
}

/// Runs commands, a few at a time. Each must end with one of `codes`.
fn run_all(commands: Vec<Command>, codes: &[i32]) {
    let queue = std::sync::Mutex::new(commands.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no panic").next();
                    let Some(mut command) = next else { break };
                    let output = output_within(&mut command, LONG);
                    let said = String::from_utf8_lossy(&output.stderr);
                    let tail: String = said.lines().rev().take(5).collect();
                    let code = output.status.code().unwrap_or(-1);
                    assert!(codes.contains(&code), "{command:?}: {code} {tail}");
                }
            });
        }
    });
}

/// The folders two levels down, which are mirrored in parallel, and the files above them.
fn parts(files: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut single = Vec::new();
    for file in files {
        let part: PathBuf = file.iter().take(2).collect();
        if part == *file {
            single.push(file.clone());
        } else if folders.last() != Some(&part) {
            folders.push(part);
        }
    }
    folders.sort();
    folders.dedup();
    (folders, single)
}

/// The URL of a path for wget and curl.
fn url(server: &Server, path: &Path) -> String {
    let mut url = format!("{}/", server.url);
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' => {
                url.push(*byte as char);
            }
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[test]
#[ignore = "nightly"] // 20,000 files
fn wget_mirrors_the_listing() {
    if !is_installed("wget") {
        return;
    }
    let served = Folder::new();
    let files = gather(served.path());
    let (folders, single) = parts(&files);
    for driver in drivers() {
        let server = Server::start(served.path(), &["--driver", driver]);
        let begun = Instant::now();
        let copy = Folder::new();
        let wget = |urls: Vec<String>| {
            let mut wget = Command::new("wget");
            wget.env("LC_ALL", "C.UTF-8").current_dir(copy.path());
            wget.args(["--no-config", "-nv", "-r", "-l", "inf", "-np", "-nH", "-x"]);
            // wget must not save listings as index.html. HTML files among the content may link to
            // missing files.
            wget.args(["-e", "robots=off", "--default-page=,listing,"]);
            wget.args([
                "--restrict-file-names=nocontrol",
                "--tries=1",
                "--timeout=20",
            ]);
            wget.args(urls);
            wget
        };
        let of_folder = |folder: &PathBuf| wget(vec![url(&server, folder) + "/"]);
        let mut commands: Vec<Command> = folders.iter().map(of_folder).collect();
        if !single.is_empty() {
            let urls = single.iter().map(|path| url(&server, path)).collect();
            let mut wget = wget(urls);
            wget.arg("--level=1");
            commands.push(wget);
        }
        // 8: something was not found. The comparison below shows whether a file is missing.
        run_all(commands, &[0, 8]);
        for path in &files {
            same(&served.path().join(path), &copy.path().join(path), path);
        }
        println!(
            "{driver}: {} files mirrored in {:?}",
            files.len(),
            begun.elapsed()
        );
    }
}

/// Fetches URLs with several curls, each on one connection, into files numbered like the URLs.
fn fetch(urls: &[String], into: &Folder, accept: &str) {
    let numbered: Vec<(usize, &String)> = urls.iter().enumerate().collect();
    let share = urls.len().div_ceil(CLIENTS).max(1);
    let curl = |(part, urls): (usize, &[(usize, &String)])| {
        let line = |(at, url): &(usize, &String)| {
            let path = into.path().join(at.to_string());
            format!("url = \"{url}\"\noutput = \"{}\"\n", path.display())
        };
        let config: String = urls.iter().map(line).collect();
        let config = into.file(&format!("config-{part}"), config);
        let mut curl = Command::new("curl");
        curl.args([
            "-q",
            "-sS",
            "--globoff",
            "--path-as-is",
            "--fail",
            "--max-time",
            "300",
        ]);
        curl.arg("-H")
            .arg(format!("Accept: {accept}"))
            .arg("-K")
            .arg(config);
        curl
    };
    run_all(numbered.chunks(share).enumerate().map(curl).collect(), &[0]);
}

/// All files in the JSON listing with their URLs, level by level and page by page.
fn listed(server: &Server) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut level = vec![(PathBuf::new(), format!("{}/", server.url))];
    while !level.is_empty() {
        let pages = Folder::new();
        let urls: Vec<String> = level.iter().map(|(_, url)| url.clone()).collect();
        fetch(&urls, &pages, "application/json");
        let mut next_level = Vec::new();
        for (at, (folder, _)) in level.iter().enumerate() {
            let page = fs::read(pages.path().join(at.to_string())).expect("fetched");
            let page: serde_json::Value = serde_json::from_slice(&page).expect("JSON");
            for entry in page["entries"].as_array().expect("a list") {
                let name = entry["name"].as_str().expect("a name");
                let href = entry["href"].as_str().expect("an address");
                let url = format!("{}{href}", server.url);
                match entry["type"].as_str().expect("a type") {
                    "file" => files.push((folder.join(name), url)),
                    _ => next_level.push((folder.join(name), url)),
                }
            }
            if let Some(next) = page["next"].as_str() {
                next_level.push((folder.clone(), format!("{}{next}", server.url)));
            }
        }
        level = next_level;
    }
    files
}

#[test]
#[ignore = "nightly"] // 20,000 files
fn curl_fetches_all_files_of_the_json_listing() {
    if !is_installed("curl") {
        return;
    }
    let served = Folder::new();
    let mut files = gather(served.path());
    files.sort();
    for driver in drivers() {
        let server = Server::start(served.path(), &["--driver", driver]);
        let begun = Instant::now();
        let mut listed = listed(&server);
        listed.sort();
        let names: Vec<&PathBuf> = listed.iter().map(|(path, _)| path).collect();
        assert!(
            names.iter().eq(&files.iter().collect::<Vec<_>>()),
            "{driver}: other files"
        );
        let copy = Folder::new();
        let urls: Vec<String> = listed.iter().map(|(_, url)| url.clone()).collect();
        fetch(&urls, &copy, "*/*");
        for (at, (path, _)) in listed.iter().enumerate() {
            same(
                &served.path().join(path),
                &copy.path().join(at.to_string()),
                path,
            );
        }
        println!(
            "{driver}: {} files fetched in {:?}",
            files.len(),
            begun.elapsed()
        );
    }
}
