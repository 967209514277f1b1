//! Rights of COPY and MOVE in the running program.

use crate::program::users::{UsersFile, login, request, start};
use crate::program::{Folder, Server, drivers};

#[test]
fn both_names_need_rights() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        for name in ["in/a", "in/secret/key", "out/old", "public/x"] {
            folder.file(name, name);
        }
        let in_rule = "/in=all";
        file.add(
            "ann",
            &[in_rule, "/in/secret=none", "/out=create", "/public=all"],
        );
        file.add("reader", &["/=read,list", "/out=all"]);
        file.add("dropper", &["/in=create,delete", "/out=all"]);
        let server = start(&folder, &file, driver, &["--allow", "put,delete"]);
        let send = |name: &str, method: &str, from: &str, to: &str| {
            let fields = format!("{}Destination: {to}\r\n", login(name));
            request(&server, method, from, &fields).0
        };
        for (name, method, from, to, status) in [
            // Without the right to delete, to read, to create, to replace.
            ("reader", "MOVE", "/in/a", "/out/a", 403),
            ("dropper", "MOVE", "/in/a", "/out/a", 403),
            ("dropper", "COPY", "/in/a", "/out/a", 403),
            ("reader", "COPY", "/in/a", "/public/a", 403),
            ("ann", "COPY", "/in/a", "/out/old", 403),
            ("ann", "MOVE", "/in/a", "/out/old", 403),
            ("ann", "COPY", "/in/secret/key", "/public/key", 403),
            // The folder contains what ann may not read, or may not write.
            ("ann", "MOVE", "/in/", "/public/in/", 403),
            ("ann", "MOVE", "/public/", "/in/secret/", 403),
            // Other spellings of a path have the same rights.
            (
                "ann",
                "COPY",
                "/in/secret/../secret/key",
                "/public/key",
                403,
            ),
            ("ann", "COPY", "/in/a", "/in/%73ecret/key", 403),
            ("ann", "COPY", "/in/a", "/out/new", 201),
            ("reader", "COPY", "/in/a", "/out/old", 204),
            ("ann", "MOVE", "/in/a", "/public/a", 201),
        ] {
            assert_eq!(
                send(name, method, from, to),
                status,
                "{name} {method} {from} {to}"
            );
        }
        assert_eq!(
            request(&server, "MOVE", "/public/a", "Destination: /b\r\n").0,
            401
        );
        let foreign = format!(
            "{}Origin: http://evil.example\r\nDestination: /public/b\r\n",
            login("ann")
        );
        assert_eq!(request(&server, "MOVE", "/public/a", &foreign).0, 403);
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name));
        assert_eq!(read("public/a").expect("moved"), "in/a");
        assert_eq!(read("in/secret/key").expect("untouched"), "in/secret/key");
    }
}

/// A folder may contain `a.css.gz`, which others would see as the content of their `a.css`.
#[test]
fn folders_with_siblings_need_the_right_to_replace() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        folder.file("own/x/a.css.gz", "planted");
        folder.file("own/y/a.css.gz", "planted");
        file.add("maker", &["/=read,list,create", "/own=all"]);
        let flags = ["--allow", "put,delete"];
        let plain = start(&folder, &file, driver, &flags);
        let flags = [&flags[..], &["--precompressed"]].concat();
        let server = start(&folder, &file, driver, &flags);
        let send = |server: &Server, method: &str, from: &str, to: &str| {
            let fields = format!("{}Destination: {to}\r\n", login("maker"));
            request(server, method, from, &fields).0
        };
        for method in ["COPY", "MOVE"] {
            assert_eq!(send(&server, method, "/own/x/", "/new/"), 403, "{method}");
        }
        let sibling = send(&server, "MOVE", "/own/x/a.css.gz", "/a.css.gz");
        assert_eq!(sibling, 403);
        assert!(!folder.path().join("new").exists());
        assert_eq!(send(&server, "COPY", "/own/x/", "/own/z/"), 201);
        assert_eq!(send(&server, "MOVE", "/own/x/", "/own/moved/"), 201);
        assert_eq!(send(&plain, "MOVE", "/own/y/", "/new/"), 201);
    }
}
