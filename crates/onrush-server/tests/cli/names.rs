//! A file system that does not distinguish upper and lower case: ntfs-3g, with `ignore_case`.

use crate::program::users::{UsersFile, login, request};
use crate::program::{Folder, Server, curl, drivers, is_installed, onrush, output, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system. Dropping it unmounts it.
struct Mounted {
    _folder: Folder,
    at: PathBuf,
}

impl Mounted {
    /// `None`: this user may not mount one here.
    fn new() -> Option<Mounted> {
        if !(is_installed("lowntfs-3g") && is_installed("mkntfs")) {
            return None;
        }
        let folder = Folder::new();
        let image = folder.file("image", "");
        let file = std::fs::OpenOptions::new().write(true).open(&image);
        file.and_then(|file| file.set_len(32 << 20))
            .expect("an image");
        let made = Command::new("mkntfs")
            .args(["-q", "-F"])
            .arg(&image)
            .output();
        assert!(made.expect("it runs").status.success());
        let at = folder.path().join("mounted");
        std::fs::create_dir(&at).expect("a folder");
        let mut mount = Command::new("lowntfs-3g");
        let mounted = mount
            .args(["-o", "ignore_case"])
            .arg(&image)
            .arg(&at)
            .output();
        let mounted = mounted.expect("it runs");
        if !mounted.status.success() {
            println!("skipped: {}", String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        Some(Mounted {
            _folder: folder,
            at,
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

/// The last line of a server or a command that does not start, and the exit code.
fn refusal(dir: &Path, command: &[&str], arguments: &[&str]) -> (String, Option<i32>) {
    let mut onrush = onrush();
    onrush.args(command).arg(dir).args(arguments);
    let output = output(&mut onrush);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (log, output.status.code())
}

#[test]
#[ignore = "nightly"] // ntfs-3g, mounts
fn rules_for_paths_and_locks_are_refused_where_case_does_not_count() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let other = Folder::new();
    let narrow = UsersFile::new();
    narrow.add("ann", &["read,list", "/Own=all"]);
    let wide = UsersFile::new();
    wide.add("ann", &["all"]);
    let headers = other.file("headers", "/private/*\n  X-Frame-Options: DENY\n");
    let headers = format!("--headers={}", headers.to_str().expect("UTF-8"));
    let users = |file: &UsersFile| format!("--auth-file={}", file.path());
    // An empty folder, and one with names.
    for name in [None, Some("Own/secret")] {
        let dir = &mounted.at;
        if let Some(name) = name {
            std::fs::create_dir(dir.join("Own")).expect("a folder");
            std::fs::write(dir.join(name), "secret").expect("written");
        }
        for (arguments, expected) in [
            (vec![users(&narrow)], "the rule of ann for /Own"),
            (
                vec!["--quota=/own=1MiB".to_owned(), "--allow=put".to_owned()],
                "the quota of /own",
            ),
            (
                vec!["--site".to_owned(), headers.clone()],
                "the path /private of --headers",
            ),
        ] {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let with_port = [&arguments[..], &["--port=0"]].concat();
            let commands: [&[&str]; 2] = [&[], &["check"]];
            for command in commands {
                // A check makes no file to find out.
                if name.is_none() && (!command.is_empty() || expected.contains("headers")) {
                    continue;
                }
                let (log, code) = refusal(dir, command, &with_port);
                assert_eq!(code, Some(2), "{command:?} {arguments:?}: {log}");
                assert!(log.contains(expected) && log.contains("by case"), "{log}");
            }
        }
        let left: Vec<_> = std::fs::read_dir(dir).expect("a folder").collect();
        let left = left
            .into_iter()
            .map(|entry| entry.expect("an entry").file_name());
        let probes = left.filter(|name| name.to_string_lossy().contains("probe"));
        assert_eq!(probes.count(), 0);
    }
    for driver in drivers() {
        let users = users(&wide);
        let arguments = [&*users, "--webdav", "--terraform-state", "--driver", driver];
        let server = Server::start(&mounted.at, &arguments);
        let ann = login("ann");
        assert_eq!(request(&server, "PUT", "/Own/new", &ann).0, 201);
        assert_eq!(request(&server, "GET", "/oWN/NEW", &ann).0, 200);
        // Reserved names are in each spelling.
        for path in ["/.onrush/staging/", "/.ONRUSH/staging/", "/.Onrush/state/"] {
            assert!(
                matches!(request(&server, "GET", path, &ann).0, 403 | 404),
                "{path}"
            );
        }
        if is_installed("curl") {
            let lock = "<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype>\
                        <write/></locktype></lockinfo>";
            for path in ["/Own/new", "/own/none", "/None"] {
                let url = format!("{}{path}", server.url);
                let arguments = ["-u", "ann:ann-password", "-X", "LOCK", "-d", lock, &url];
                let said = curl(&arguments);
                assert!(said.contains("does not distinguish"), "{path}: {said}");
            }
            let url = format!("{}/a.tfstate", server.url);
            let of_state = [
                "-u",
                "ann:ann-password",
                "-X",
                "LOCK",
                "-d",
                "{\"ID\":\"1\"}",
            ];
            let json = ["-H", "Content-Type: application/json", &*url];
            let said = curl(&[&of_state[..], &json].concat());
            assert!(said.contains("does not distinguish"), "{said}");
        }
        // New users with a rule for a path do not replace those in use.
        let before = wide.text();
        wide.write(&narrow.text());
        server.signal("HUP");
        server.logs("the users in use remain");
        assert_eq!(request(&server, "PUT", "/Own/new", &ann).0, 204);
        assert_eq!(request(&server, "DELETE", "/oWn/nEW", &ann).0, 204);
        wide.write(&before);
    }
    let (_, code) = refusal(&mounted.at, &["check"], &[&users(&wide)]);
    assert_eq!(code, Some(0));
}

/// The same rules work where case counts.
#[test]
fn rules_for_paths_work_where_case_counts() {
    let (folder, file) = (Folder::new(), UsersFile::new());
    folder.file("Own/secret", "secret");
    folder.file("caf\u{e9}/x", "x");
    file.add(
        "ann",
        &["all", "/Own=none", "/caf\u{e9}=read", "/new/deep=read"],
    );
    for driver in drivers() {
        let arguments = [
            "--auth-file",
            file.path(),
            "--quota=/Own=1MiB",
            "--driver",
            driver,
        ];
        let server = Server::start(folder.path(), &arguments);
        assert_eq!(request(&server, "GET", "/Own/secret", &login("ann")).0, 403);
        assert_eq!(request(&server, "GET", "/own/secret", &login("ann")).0, 404);
    }
    for name in ["Own", "caf\u{e9}", "."] {
        let entries = std::fs::read_dir(folder.path().join(name)).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        assert!(
            !names
                .into_iter()
                .any(|name| name.to_string_lossy().contains("probe"))
        );
    }
}

/// The path of the folder leads to such a file system later: nothing is served with rules that
/// another spelling bypasses.
#[test]
#[ignore = "nightly"] // ntfs-3g, mounts
fn a_folder_where_case_does_not_count_takes_no_others_place() {
    let Some(mounted) = Mounted::new() else {
        return;
    };
    let folder = Folder::new();
    let [plain, link] = ["plain", "link"].map(|name| folder.path().join(name));
    for dir in [&plain, &mounted.at] {
        std::fs::create_dir_all(dir.join("Own")).expect("a folder");
        std::fs::write(dir.join("Own/secret"), "secret").expect("written");
        std::fs::write(dir.join("open"), "open").expect("written");
    }
    let lead_to = |target: &Path| {
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).expect("a link");
    };
    lead_to(&plain);
    let (narrow, wide) = (UsersFile::new(), UsersFile::new());
    narrow.add("ann", &["read,list", "/Own=none"]);
    wide.add("ann", &["read,list"]);
    let ann = login("ann");
    for driver in drivers() {
        let start = |users: &UsersFile| {
            let users = format!("--auth-file={}", users.path());
            Server::start(&link, &[&users, "--driver", driver])
        };
        let server = start(&narrow);
        let status = |path: &str| request(&server, "GET", path, &ann).0;
        assert_eq!(
            (
                status("/open"),
                status("/Own/secret"),
                status("/oWN/secret")
            ),
            (200, 403, 404)
        );
        lead_to(&mounted.at);
        wait_until(|| {
            assert_ne!(status("/oWN/secret"), 200);
            status("/open") == 503
        });
        assert_eq!(
            (status("/Own/secret"), status("/oWN/secret"), status("/")),
            (403, 503, 503)
        );
        let log = server.log();
        assert!(
            log.contains("the rule of ann for /Own; serve a folder"),
            "{log}"
        );
        assert_eq!(log.matches("requests get 503").count(), 1, "{log}");
        lead_to(&plain);
        wait_until(|| status("/open") == 200);
        assert_eq!(status("/Own/secret"), 403);
        drop(server);
        // Rules for everything hold there.
        let server = start(&wide);
        let status = |path: &str| request(&server, "GET", path, &ann).0;
        lead_to(&mounted.at);
        wait_until(|| status("/oWN/secret") == 200);
        lead_to(&plain);
        wait_until(|| status("/oWN/secret") == 404);
    }
}
