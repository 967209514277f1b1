//! PROPFIND of folders: the space that they have, the time of the top one, and everything beneath.

use crate::common::webdav::{element, paths, propfind, webdav};
use crate::common::*;
use onrush::DriverPreference;
use onrush_files::FilesOptions;
use onrush_rt::blocking::BlockingPool;
use onrush_store::testing::MemoryStore;
use onrush_store::{Folder, FolderOptions, Key, Quota, QuotaStore};
use std::sync::Arc;

const ASK: &str = "<propfind xmlns=\"DAV:\"><prop><quota-available-bytes/><quota-used-bytes/>\
                   </prop></propfind>";

/// The available and the used bytes of each path in the response; `None` if it has none.
fn spaces(server: &mut TestServer, path: &str, depth: &str) -> Vec<(String, Option<[u64; 2]>)> {
    let reply = server.request(&format!("PROPFIND {path}\nDepth: {depth}"), ASK.as_bytes());
    assert_eq!(reply.status, 207, "{path}");
    let each = reply.text().split("<D:response>").skip(1);
    let space = |response: &str| {
        let bytes = |name| element(response, name).map(|text| text.parse().expect("a number"));
        let both = bytes("quota-available-bytes").zip(bytes("quota-used-bytes"));
        let missing = "<quota-available-bytes xmlns=\"DAV:\"/><quota-used-bytes xmlns=\"DAV:\"/>";
        assert_eq!(both.is_none(), response.contains(missing), "{response}");
        let path = element(response, "href").expect("a path");
        (
            path.to_owned(),
            both.map(|(available, used)| [available, used]),
        )
    };
    each.map(space).collect()
}

#[test]
fn the_space_of_a_folder_is_shown_to_those_who_ask_for_it() {
    let kept_free = FilesOptions {
        min_free_bytes: 400,
        ..webdav()
    };
    for seed in [1, 2] {
        let mut server = TestServer::simulated("/", &kept_free, seed);
        let server = &mut server;
        server.put("/f/a", &[0; 300]);
        server.disk().disk_full_after(Some(1000));
        let of = |server: &mut TestServer, path| spaces(server, path, "0")[0].1;
        let [available, used] = of(server, "/").expect("a space");
        assert_eq!(available, 600);
        assert!(used >= 300, "{used}");
        assert_eq!(of(server, "/f/").map(|space| space[0]), Some(600));
        assert_eq!(of(server, "/f/a"), None, "an object has none");
        server.disk().disk_full_after(Some(399));
        assert_eq!(of(server, "/f").map(|space| space[0]), Some(0));
        let both = spaces(server, "/", "1");
        let shown: Vec<_> = both
            .iter()
            .map(|(path, space)| (&path[..], space.is_some()))
            .collect();
        assert_eq!(shown, [("/", true), ("/f/", true)]);
        // Only by name, and it cannot be set.
        let all = propfind(server, "/f/", "0");
        assert!(!all.text().contains("quota"), "{}", all.text());
        let include = "<propfind xmlns=\"DAV:\"><allprop/><include><quota-used-bytes/></include>\
                       </propfind>";
        let more = server.request("PROPFIND /f/\nDepth: 0", include.as_bytes());
        assert!(element(more.text(), "quota-used-bytes").is_some());
        assert!(!more.text().contains("404 Not Found"), "{}", more.text());
        let names = b"<propfind xmlns=\"DAV:\"><propname/></propfind>";
        let names = server.request("PROPFIND /f/\nDepth: 0", names);
        assert!(names.text().contains("<D:quota-available-bytes/>"));
        let set = "<propertyupdate xmlns=\"DAV:\"><set><prop><quota-used-bytes>0\
                   </quota-used-bytes></prop></set></propertyupdate>";
        let set = server.request("PROPPATCH /f/", set.as_bytes());
        assert!(set.text().contains("403 Forbidden"), "{}", set.text());
    }
    let read_only = FilesOptions {
        webdav: true,
        ..FilesOptions::default()
    };
    on_all_backends(&read_only, |server| {
        assert_eq!(spaces(server, "/", "0"), [("/".to_owned(), None)]);
    });
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &webdav(), DriverPreference::Epoll);
    assert_eq!(spaces(&mut server, "/", "0"), [("/".to_owned(), None)]);
}

#[test]
fn the_space_of_a_folder_is_what_its_quotas_leave() {
    for driver in drivers() {
        let dir = TempDir::new();
        let pool = BlockingPool::threads(2, 100);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder");
        let quota = |prefix: &str, bytes_max| Quota {
            prefix: Key::parse(prefix.as_bytes()).ok(),
            bytes_max,
        };
        let quotas = vec![quota("in", 100_000), quota("in/deep", 80_000)];
        let store = QuotaStore::new(folder, quotas).expect("a count");
        let mut server = TestServer::on_store(Arc::new(store), &webdav(), driver);
        let server = &mut server;
        assert_eq!(server.put("/in/a", &pattern(30_000)).status, 201);
        assert_eq!(server.put("/in/deep/b", &pattern(5_000)).status, 201);
        assert_eq!(server.put("/in/deeper/b", b"").status, 201);
        // Both folders, and the object without content, count 4096 bytes each.
        let used = 30_000 + 5_000 + 3 * 4096;
        let space = Some([100_000 - used, used]);
        let found = spaces(server, "/in/", "1");
        let expected = [
            ("/in/", space),
            ("/in/a", None),
            ("/in/deep/", space),
            ("/in/deeper/", space),
        ];
        let found: Vec<_> = found
            .iter()
            .map(|(path, space)| (&path[..], *space))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(server.put("/in/deep/c", &pattern(45_000)).status, 201);
        let found = spaces(server, "/in/deep", "0");
        assert_eq!(
            found,
            [(
                "/in/deep/".to_owned(),
                Some([100_000 - used - 45_000, used + 45_000])
            )]
        );
        let [available, _] = spaces(server, "/", "0")[0].1.expect("that of the disk");
        assert!(available > 100_000, "{available}");
    }
}

#[test]
fn the_top_folder_has_a_time() {
    on_all_backends(&webdav(), |server| {
        server.add_folder("f");
        for path in ["/", "/f/"] {
            let found = propfind(server, path, "0");
            let modified = element(found.text(), "getlastmodified").expect("a time");
            assert!(modified.ends_with(" GMT"), "{path}: {modified}");
        }
    });
    // Those of the folders of a bucket are not known, and clients such as object_store need one.
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &webdav(), DriverPreference::Epoll);
    server.put("/f/a", b"content");
    for path in ["/", "/f/"] {
        let found = propfind(&mut server, path, "0");
        let modified = element(found.text(), "getlastmodified");
        assert_eq!(modified, Some("Thu, 01 Jan 1970 00:00:00 GMT"), "{path}");
    }
}

#[test]
fn everything_beneath_a_folder_is_shown_up_to_a_number() {
    let options = FilesOptions {
        propfind_entries_max: 7,
        hidden: false,
        ..webdav()
    };
    on_all_backends(&options, |server| {
        for name in ["f/a", "f/sub/b", "f/sub/deep/c", "f/z", "f/.git/x", "other"] {
            server.add(name, b"12345");
        }
        server.add_symlink(
            "f/sub/deep/loop",
            if server.is_simulated() {
                "c"
            } else {
                "../../sub"
            },
        );
        let found = propfind(server, "/f", "infinity");
        assert_eq!(found.status, 207);
        let mut expected = vec!["/f/", "/f/a", "/f/sub/", "/f/sub/b", "/f/sub/deep/"];
        expected.push("/f/sub/deep/c");
        let is_loop = !server.is_simulated();
        expected.push(if is_loop {
            "/f/sub/deep/loop/"
        } else {
            "/f/sub/deep/loop"
        });
        expected.push("/f/z");
        assert_eq!(paths(&found), expected, "{}", server.name);
        assert!(found.text().ends_with("</D:multistatus>\n"));
        // One more: the entries count, and not the folder itself.
        for path in ["/", "/f"] {
            server.add("f/sub/deep/more", b"x");
            let refused = propfind(server, path, "infinity");
            assert_eq!(refused.status, 403, "{path}");
            assert!(refused.text().contains("<D:propfind-finite-depth/>"));
            // Without the field, the depth is infinite.
            assert_eq!(server.request(&format!("PROPFIND {path}"), b"").status, 403);
            assert_eq!(propfind(server, path, "1").status, 207);
        }
        assert_eq!(server.request("PROPFIND /f/sub/", b"").status, 207);
        assert_eq!(propfind(server, "/none/", "infinity").status, 404);
        assert_eq!(paths(&propfind(server, "/f/a", "infinity")), ["/f/a"]);
    });
}

/// More than a page, and more than a piece of the response.
#[test]
fn many_folders_are_shown_completely() {
    let options = FilesOptions {
        propfind_entries_max: 3_100,
        ..webdav()
    };
    for driver in drivers() {
        let mut server = TestServer::real("/", &options, driver);
        let mut expected = vec!["/".to_owned()];
        for folder in 0..100 {
            expected.push(format!("/{folder:03}/"));
            let count = if folder == 50 { 1_500 } else { 15 };
            for file in 0..count {
                server.add(&format!("{folder:03}/{file:04}"), b"x");
                expected.push(format!("/{folder:03}/{file:04}"));
            }
        }
        assert_eq!(expected.len(), 3_086);
        assert_eq!(paths(&propfind(&mut server, "/", "infinity")), expected);
    }
}
