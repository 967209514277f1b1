//! The users of the real program: `onrush user`, `onrush check`, configurations that are refused,
//! loading again, failed logins, and other origins.

use crate::program::users::{UsersFile, login, request, with_input};
use crate::program::{Folder, Server, drivers, onrush, output, wait_until};
use std::os::unix::fs::PermissionsExt;

/// Runs `onrush` and returns its exit code, stdout and stderr.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = output(onrush().args(arguments));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The one line of a wrong usage.
fn usage_error(arguments: &[&str]) -> String {
    let (code, _, line) = run(arguments);
    assert_eq!(code, Some(2), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn the_file_is_edited_and_stays_readable() {
    let file = UsersFile::new();
    file.add("ann", &["read,list", "/ann=all"]);
    let mode = std::fs::metadata(&file.path)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        file.text().starts_with("# The users of onrush."),
        "{}",
        file.text()
    );
    assert!(!file.text().contains("ann-password"));
    file.write(
        &file
            .text()
            .replace("[users.ann]", "# The boss.\n[users.ann]"),
    );
    file.user(
        "add",
        "bob",
        &["--no-password", "--certificate", "cn:bob"],
        "",
    );
    let first = file.user("token", "bob", &["--name", "ci"], "");
    let second = file.user("token", "bob", &["--name", "laptop"], "");
    assert!(first.starts_with("onrush_") && first.len() > 43 && first != second);
    assert!(!file.text().contains(&first), "only its hash is stored");
    assert_eq!(
        file.list(),
        "ann\tpassword\t/=read,list /ann=read,list,write,delete\n\
         bob\t2 tokens, 1 certificate\t/=read,list,write,delete\n\
         (anonymous)\t-\tnone"
    );
    file.user("token", "bob", &["--name", "ci", "--remove"], "");
    assert!(
        file.list().contains("bob\t1 token, 1 certificate"),
        "{}",
        file.list()
    );
    let before = file.text();
    file.user("passwd", "ann", &[], "another\n");
    assert_ne!(file.text(), before);
    for (arguments, input) in [
        (&["passwd", "ann"][..], "third\n"),
        (&["token", "bob", "--name", "laptop", "--remove"], ""),
        (&["remove", "bob"], ""),
    ] {
        let before = file.text();
        let arguments = [&["user"], arguments, &["--auth-file", file.path()]].concat();
        let edited = with_input(&arguments, input);
        let said = String::from_utf8_lossy(&edited.stderr).into_owned();
        assert!(
            said.contains("a running server takes this over on SIGHUP"),
            "{said}"
        );
        file.write(&before);
    }
    assert!(file.text().contains("# The boss."), "{}", file.text());
    file.user("remove", "bob", &[], "");
    assert!(!file.list().contains("bob"), "{}", file.list());
    let folder = file.path.parent().expect("a folder");
    assert_eq!(
        std::fs::read_dir(folder).expect("a folder").count(),
        1,
        "no other file is left"
    );
}

#[test]
fn mistakes_are_one_line_and_change_nothing() {
    let file = UsersFile::new();
    file.add("ann", &["all"]);
    let before = file.text();
    let path = file.path();
    for (arguments, input, expected) in [
        (
            &["user", "add", "ann", "--auth-file", path][..],
            "x\n",
            "exists already",
        ),
        (
            &["user", "add", "a b", "--auth-file", path],
            "x\n",
            "a user name has",
        ),
        (
            &["user", "add", "bob", "--auth-file", path],
            "\n",
            "a password has 1 to",
        ),
        (
            &["user", "add", "bob", "--auth-file", path, "--rights", "x=y"],
            "x\n",
            "a right is",
        ),
        (
            &["user", "add", "bob", "--auth-file", path, "--rights=x=all"],
            "x\n",
            "write a path",
        ),
        (
            &[
                "user",
                "add",
                "bob",
                "--auth-file",
                path,
                "--certificate",
                "bob",
            ],
            "x\n",
            "cn:",
        ),
        (
            &["user", "passwd", "bob", "--auth-file", path],
            "x\n",
            "there is no user 'bob'",
        ),
        (
            &["user", "remove", "bob", "--auth-file", path],
            "",
            "there is no user 'bob'",
        ),
        (
            &["user", "token", "bob", "--auth-file", path],
            "",
            "there is no user 'bob'",
        ),
        (
            &["user", "token", "ann", "--remove", "--auth-file", path],
            "",
            "has no token 'token'",
        ),
        (
            &["user", "list", "--auth-file", "/dev/null/x"],
            "",
            "cannot be read",
        ),
        (&["user", "list"], "", "--auth-file"),
        (
            &["sign", "/a?b", "--expires", "1h", "--auth-file", path],
            "",
            "without a query",
        ),
        (
            &[
                "sign",
                "/a",
                "--expires",
                "1h",
                "--auth-file",
                path,
                "--user",
                "bob",
            ],
            "",
            "no user",
        ),
        (
            &["sign", "/..", "--expires", "1h", "--auth-file", path],
            "",
            "above the top folder",
        ),
    ] {
        let output = with_input(arguments, input);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(
            line.contains(expected) && line.lines().count() == 1,
            "{line}"
        );
    }
    assert_eq!(file.text(), before);
    // Others can read it.
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(&file.path, mode).expect("own file");
    for arguments in [
        &["user", "list", "--auth-file", path][..],
        &["user", "remove", "ann", "--auth-file", path],
        &["check", "--auth-file", path],
        &["--auth-file", path],
    ] {
        let line = usage_error(arguments);
        assert!(line.contains("(mode 640); run: chmod 600 "), "{line}");
    }
}

#[test]
fn strangers_cannot_make_changes_unless_that_is_intended() {
    let (file, empty) = (UsersFile::new(), UsersFile::new());
    file.add("ann", &["all"]);
    empty.add("x", &["none"]);
    empty.user("remove", "x", &[], "");
    empty.write(&(empty.text() + "[anonymous]\nrights = { '/in' = ['create'] }\n"));
    for (arguments, is_refused) in [
        (&["--allow=put", "--bind=0.0.0.0"][..], true),
        (&["--allow=delete", "--bind=[::]:1"], true),
        (&["--allow=put", "--bind=127.0.0.1,192.0.2.1:1"], true),
        (&["--upload-only", "--bind=0.0.0.0"], true),
        (&["--bind=0.0.0.0", "--auth-file", empty.path()], true),
        (
            &["--allow=put", "--bind=0.0.0.0", "--tls-self-signed"],
            true,
        ),
        (
            &["--allow=put", "--bind=0.0.0.0", "--insecure-writes"],
            false,
        ),
        (
            &[
                "--allow=put",
                "--bind=127.0.0.1,[::1]:1,unix:/run/x,localhost:2",
            ],
            false,
        ),
        (&["--bind=0.0.0.0"], false),
        (&["--sink", "--bind=0.0.0.0"], false),
        (&["--allow=none", "--upload-only", "--bind=0.0.0.0"], false),
        (&["--allow=put", "--bind=0.0.0.0", "--auth=ann:x"], false),
        (&["--bind=0.0.0.0", "--auth-file", file.path()], false),
        (
            &[
                "--allow=put",
                "--bind=0.0.0.0",
                "--tls-self-signed",
                "--tls-client-ca=/dev/null/x",
            ],
            false,
        ),
    ] {
        let (code, _, said) = run(&[&["check"], arguments].concat());
        assert_eq!(
            code,
            Some(if is_refused { 2 } else { 0 }),
            "{arguments:?}: {said}"
        );
        assert_eq!(
            said.contains("could make changes: add users"),
            is_refused,
            "{said}"
        );
        if is_refused {
            assert!(
                usage_error(arguments).contains("--insecure-writes"),
                "{arguments:?}"
            );
        }
    }
    for (arguments, expected) in [
        (&["--public-read"][..], "add --auth-file"),
        (&["--public-read", "--upload-only"], "exclude each other"),
        (&["--auth=secret"], "--auth: write NAME:PASSWORD"),
        (&["--auth=a b:secret"], "--auth: a user name has"),
        (
            &["--auth=ann:secret", "--auth-file", file.path()],
            "exists already",
        ),
        (&["--cors=app.example"], "write an origin as"),
        (&["--auth-file=/nonexistent"], "onrush user add NAME"),
    ] {
        let line = usage_error(arguments);
        assert!(
            line.contains(expected) && !line.contains("secret"),
            "{line}"
        );
    }
}

/// The server does not create a folder that no client may write.
#[test]
fn check_warns_of_a_folder_that_is_missing_or_none() {
    for (dir, what) in [
        ("/nonexistent/data", "does not exist"),
        ("/dev/null", "is not a folder"),
    ] {
        let (code, out, _) = run(&["check", dir]);
        assert_eq!(code, Some(0));
        assert!(
            out.contains(&format!("warning      {dir} {what}; ")),
            "{out}"
        );
    }
    let (_, out, _) = run(&["check", "/nonexistent/data", "--allow=put"]);
    assert!(!out.contains("warning"), "{out}");
}

/// A word that is no command, and what looks like a bucket, are no folders that someone wants.
#[test]
fn what_is_no_folder_gets_a_hint() {
    let (code, _, line) = run(&["help", "--port=0"]);
    assert_eq!(code, Some(1));
    assert!(
        line.contains("onrush --help lists the options and commands"),
        "{line}"
    );
    for location in ["s3:/bucket", "s3:bucket"] {
        let line = usage_error(&[location, "--allow=put", "--port=0"]);
        assert!(line.contains("a bucket is s3://BUCKET"), "{line}");
    }
    let line = usage_error(&["user"]);
    assert!(line.contains("add, remove, list, passwd, token"), "{line}");
}

#[test]
fn check_prints_who_may_do_what_and_starts_nothing() {
    let file = UsersFile::new();
    file.add("ann", &["read,list", "/in=create"]);
    let arguments = ["check", "/nonexistent/data", "--auth-file", file.path()];
    let (code, out, _) = run(&[&arguments[..], &["--public-read", "--bind=0.0.0.0:81"]].concat());
    assert_eq!(code, Some(0));
    let expected = "\
serves       /nonexistent/data
address      0.0.0.0:81 (HTTP, not encrypted, reachable from other machines)
permits      read,list,write,delete, at most
anonymous    / read,list
user         ann (password): / read,list
user         ann (password): /in create (does not replace)
warning      the rule of ann for /in withholds read,list, but with --public-read everyone has it \
without logging in; only a rule of anonymous for /in withholds it
warning      passwords and tokens are not encrypted at 0.0.0.0:81; use \
--tls-self-signed, --acme or --tls-cert
";
    assert_eq!(out, expected);
    let (_, out, _) = run(&["check", "--allow=put", "--tls-self-signed"]);
    assert!(
        out.contains("permits      read,list,write, at most\nanonymous    / read,list,write\n"),
        "{out}"
    );
    assert!(
        out.contains("(HTTPS, self-signed certificate, this machine only)"),
        "{out}"
    );
    let (_, out, _) = run(&[&arguments[..], &["--allow=none"]].concat());
    assert!(
        out.contains("/in none") && out.contains("anonymous    / none"),
        "{out}"
    );
}

#[test]
fn check_warns_of_rules_that_public_read_makes_void() {
    let file = UsersFile::new();
    file.add(
        "ann",
        &["read,list", "/ann=all", "/pay=none", "/shut/a=create,read"],
    );
    file.write(&(file.text() + "\n[anonymous]\nrights = { '/shut' = [] }\n"));
    let arguments = ["check", "--auth-file", file.path()];
    let (_, out, _) = run(&[&arguments[..], &["--public-read"]].concat());
    let warnings: Vec<&str> = out
        .lines()
        .filter(|line| line.starts_with("warning"))
        .collect();
    assert_eq!(warnings.len(), 1, "{out}");
    let expected = "the rule of ann for /pay withholds read,list, but with --public-read";
    assert!(warnings[0].contains(expected), "{out}");
    let (_, out, _) = run(&arguments);
    assert!(!out.contains("warning"), "{out}");
}

#[test]
fn check_prints_the_admin_address_and_options() {
    let dir = "/nonexistent/data";
    let file = UsersFile::new();
    file.add("ann", &["all"]);
    let users = ["check", dir, "--auth-file", file.path()];
    let folders = "folders are deleted with everything in them";
    let (_, out, _) = run(&users);
    assert!(!out.contains(folders), "{out}");
    let more = [
        "--webdav",
        "--site",
        "--cors=*,https://app.example",
        "--quota=/=2KiB,/a b/=5",
        "--admin=9090",
    ];
    let (code, out, _) = run(&[&users[..], &more].concat());
    assert_eq!(code, Some(0));
    let expected = "\
serves       /nonexistent/data
address      127.0.0.1:8080 (HTTP, not encrypted, this machine only)
admin        127.0.0.1:9090 (without login and encryption, this machine only)
options      --webdav --site --cors * --cors https://app.example
quota        / 2048 bytes
quota        /a b 5 bytes
permits      read,list,write,delete, at most; folders are deleted with everything in them
anonymous    / none
user         ann (password): / read,list,write,delete
";
    assert_eq!(out, expected);
    let (_, out, _) = run(&["check", dir, "--allow=put,delete-folders", "--admin=same"]);
    assert!(
        out.contains(folders) && out.contains("admin        beneath /-/ at each address\n"),
        "{out}"
    );
    let (_, out, _) = run(&["check", ".", "--admin=0.0.0.0:9090"]);
    assert!(
        out.contains("0.0.0.0:9090 (without login and encryption, reachable from other machines)")
            && out.contains("warning      everyone who can reach 0.0.0.0:9090 sees the metrics"),
        "{out}"
    );
    let line = usage_error(&["check", ".", "--quota=/a=1", "--quota=/b=1,/a/=2"]);
    assert!(line.contains("quota: /a is given twice"), "{line}");
}

/// The URL is printed all the same: the rights may change before it is used.
#[test]
fn a_signed_url_that_its_user_has_no_right_for_gets_a_warning() {
    let file = UsersFile::new();
    file.add("ann", &["/pub=read", "/in=create"]);
    let sign = |path: &str, method: &str| {
        let of = ["sign", path, "--method", method, "--expires=1h"];
        let (code, url, warning) = run(&[&of[..], &["--auth-file", file.path()]].concat());
        assert!(
            code == Some(0) && url.contains("onrush-signature="),
            "{url}"
        );
        warning
    };
    for (path, method) in [("/pub/a", "GET"), ("/in/a%20b", "PUT")] {
        assert_eq!(sign(path, method), "", "{path}");
    }
    for (path, method, right) in [
        ("/pub/", "GET", "list"),
        ("/p%75b/a", "PUT", "create"),
        ("/in/a", "GET", "read"),
        ("https://a.example/other", "GET", "read"),
    ] {
        let warning = sign(path, method);
        let expected = format!("'ann' lacks the right {right} for /");
        assert!(
            warning.starts_with("onrush: warning: ") && warning.contains(&expected),
            "{path}: {warning}"
        );
        assert_eq!(warning.lines().count(), 1);
    }
}

#[test]
fn the_help_of_commands_names_the_program() {
    for (arguments, usage) in [
        (&["scrub", "--help"][..], "Usage: onrush scrub "),
        (&["sign", "--help"], "Usage: onrush sign "),
        (&["user", "--help"], "Usage: onrush user "),
        (&["user", "passwd", "--help"], "Usage: onrush user passwd "),
    ] {
        let (code, out, _) = run(arguments);
        assert_eq!(code, Some(0));
        assert!(out.contains(usage), "{out}");
        if arguments[1] == "passwd" {
            assert!(out.contains("on SIGHUP"), "{out}");
        }
    }
}

#[test]
fn the_users_are_loaded_again_and_a_broken_file_changes_nothing() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in drivers() {
        let file = UsersFile::new();
        file.add("ann", &["all"]);
        let token = file.user("token", "ann", &[], "");
        let server = Server::start(
            folder.path(),
            &["--auth-file", file.path(), "--driver", driver, "--admin=0"],
        );
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let status = |fields: &str| request(&server, "GET", "/x", fields).0;
        assert_eq!((status(&login("ann")), status(&bearer)), (200, 200));
        let good = file.text();
        file.write(&(good.clone() + "nonsense"));
        server.signal("HUP");
        server.logs("the users in use remain");
        assert_eq!((status(&login("ann")), status(&bearer)), (200, 200));
        file.write(&good);
        file.user("token", "ann", &["--remove"], "");
        file.add("bob", &["all"]);
        server.signal("HUP");
        wait_until(|| status(&bearer) == 401);
        assert_eq!((status(&login("ann")), status(&login("bob"))), (200, 200));
        file.user("remove", "ann", &[], "");
        server.signal("HUP");
        wait_until(|| {
            status(&login("bob")) == 200 && server.log().matches("users loaded").count() == 2
        });
        assert_eq!(
            status(&login("ann")),
            401,
            "what was remembered is forgotten"
        );
    }
}

#[test]
fn files_with_secrets_are_no_objects() {
    let folder = Folder::new();
    let dir = folder.path().to_str().expect("UTF-8");
    let inside = UsersFile {
        path: folder.path().join("deep").join("users.toml"),
        ..UsersFile::new()
    };
    folder.file("deep/x", "x");
    inside.add("ann", &["all"]);
    let outside = UsersFile::new();
    outside.add("ann", &["all"]);
    let link = |name: &str, target: &str, at: &std::path::Path| {
        let path = at.join(name);
        std::os::unix::fs::symlink(target, &path).expect("a link");
        path.to_str().expect("UTF-8").to_owned()
    };
    let others = Folder::new();
    let link_in = link("in.toml", outside.path(), folder.path());
    let link_out = link("out.toml", inside.path(), others.path());
    let spelled = format!("{dir}/deep/../deep/users.toml");
    for file in [inside.path(), &link_in, &link_out, &spelled] {
        for command in [&["check", dir][..], &[dir, "--port=0"]] {
            let line = usage_error(&[command, &["--auth-file", file]].concat());
            assert!(line.contains("move it out of that folder"), "{line}");
        }
    }
    let key = folder.file("a.key", "key");
    let key = key.to_str().expect("UTF-8");
    let line = usage_error(&[dir, "--tls-cert", "a.pem", "--tls-key", key, "--port=0"]);
    assert!(
        line.contains("--tls-key: ") && line.contains("move it out"),
        "{line}"
    );
    let config = folder.file("onrush.toml", "auth = 'ann:pw'\n");
    let config = config.to_str().expect("UTF-8");
    let line = usage_error(&["check", dir, "--config", config]);
    assert!(
        line.contains("--config: ") && line.contains("move it out"),
        "{line}"
    );
    folder.file("onrush.toml", "port = 0\n");
    assert_eq!(
        run(&["check", dir, "--config", config]).0,
        Some(0),
        "no secret"
    );
    std::fs::rename(folder.path().join("deep"), folder.path().join(".onrush")).expect("renamed");
    let reserved = format!("{dir}/.onrush/users.toml");
    assert_eq!(run(&["check", dir, "--auth-file", &reserved]).0, Some(0));
    // A link that leads into the folder later.
    let current = link("users.toml", outside.path(), others.path());
    folder.file("deep/x", "x");
    inside.add("bob", &["all"]);
    let server = Server::start(folder.path(), &["--auth-file", &current]);
    std::fs::remove_file(&current).expect("removed");
    link("users.toml", inside.path(), others.path());
    server.signal("HUP");
    server.logs("where clients could read or replace it");
    assert_eq!(request(&server, "GET", "/x", &login("ann")).0, 404);
    assert_eq!(request(&server, "GET", "/x", &login("bob")).0, 401);
}

#[test]
fn a_fifo_is_no_users_file_and_blocks_nothing() {
    let folder = Folder::new();
    let dir = folder.path().to_str().expect("UTF-8");
    let file = UsersFile::new();
    file.add("ann", &["all"]);
    let path = file.path();
    let server = Server::start(folder.path(), &["--auth-file", path]);
    let text = file.text();
    std::fs::remove_file(path).expect("removed");
    let made = output(std::process::Command::new("mkfifo").args(["-m", "600", path]));
    assert!(made.status.success());
    for arguments in [
        &["check", dir, "--auth-file", path][..],
        &["user", "list", "--auth-file", path],
    ] {
        assert!(usage_error(arguments).contains("is not a file"));
    }
    server.signal("HUP");
    server.logs("is not a file; the users in use remain");
    std::fs::remove_file(path).expect("removed");
    let other = UsersFile::new();
    other.add("ann", &["all"]);
    other.write(&text);
    std::fs::rename(other.path(), path).expect("renamed");
    server.signal("HUP");
    server.logs("users loaded");
}

#[test]
fn a_link_to_a_users_file_stays_a_link() {
    let (file, links) = (UsersFile::new(), Folder::new());
    file.add("ann", &["all"]);
    let link = links.path().join("users.toml");
    std::os::unix::fs::symlink(file.path(), &link).expect("a link");
    let linked = UsersFile {
        path: link.clone(),
        ..UsersFile::new()
    };
    linked.add("bob", &["read"]);
    assert!(link.is_symlink());
    assert!(file.list().contains("bob"), "{}", file.list());
    std::fs::remove_file(file.path()).expect("removed");
    let output = with_input(&["user", "add", "c", "--auth-file", linked.path()], "pw\n");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("leads to no file"), "{line}");
}
