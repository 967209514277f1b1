//! The cache of small objects: when entries are checked again, and that its memory is bounded.

use crate::common::*;
use onrush_files::FilesOptions;
use onrush_rt::descriptors::{Descriptors, FileUse};
use onrush_rt::fs::{Create, OpenHow};

/// The freshness bound of the default options.
const FRESH_MS: u64 = 1_000;

/// The content, and the number of disk operations that the request needed.
fn get(server: &mut TestServer, path: &str) -> (Vec<u8>, u64) {
    let before = server.disk().operations();
    let reply = server.get(path);
    assert_eq!(reply.status, 200, "{path}");
    (reply.body, server.disk().operations() - before)
}

#[test]
fn cached_object_needs_no_disk_operation() {
    for seed in 1..5 {
        let mut server = TestServer::simulated("/", &FilesOptions::default(), seed);
        server.add("f", b"one");
        assert!(get(&mut server, "/f").1 > 0);
        for _ in 0..5 {
            assert_eq!(get(&mut server, "/f"), (b"one".to_vec(), 0));
            assert_eq!(get(&mut server, "/%66").0, b"one");
        }
        assert_eq!(server.request("GET /f\nRange: bytes=1-1", b"").body, b"n");
        server.advance(FRESH_MS);
        let (content, operations) = get(&mut server, "/f");
        assert_eq!(content, b"one");
        assert!(operations > 0, "the object is checked again");
        assert_eq!(get(&mut server, "/f").1, 0);
    }
}

#[test]
fn external_changes_are_seen_within_the_bound() {
    for seed in 1..5 {
        let mut server = TestServer::simulated("/", &writable(), seed);
        server.add("f", b"one");
        let old = server.get("/f").etag().to_owned();
        server.add_at(b"f", b"two", LONG_AGO_S + 10);
        server.advance(FRESH_MS);
        let new = server.get("/f");
        assert_eq!(new.body, b"two");
        assert_ne!(new.etag(), old);
        let root = server.root();
        root.unlink(b"f").unwrap();
        server.advance(FRESH_MS);
        assert_eq!(server.get("/f").status, 404);
        server.add("f", b"three");
        assert_eq!(server.get("/f").body, b"three");
    }
}

#[test]
fn bound_of_zero_opens_the_object_for_every_request() {
    let options = FilesOptions {
        cache_max_age_ms: 0,
        ..FilesOptions::default()
    };
    let mut server = TestServer::simulated("/", &options, 1);
    server.add("f", b"one");
    assert_eq!(server.get("/f").body, b"one");
    server.add_at(b"f", b"two", LONG_AGO_S + 10);
    assert_eq!(server.get("/f").body, b"two");
}

#[test]
fn changes_through_the_server_are_seen_at_once() {
    on_all_backends(&writable(), |server| {
        server.add("f", b"old");
        for round in 0..20_u8 {
            // Most likely, both workers have it in memory.
            (0..6).for_each(|_| assert_eq!(server.get("/f").status, 200));
            server.put("/f", &[round; 100]);
            (0..6).for_each(|_| assert_eq!(server.get("/f").body, [round; 100], "{}", server.name));
            server.delete("/f");
            assert_eq!(server.get("/f").status, 404);
            server.add("f", &[round; 3]);
            assert_eq!(server.get("/f").body, [round; 3]);
        }
    });
}

#[test]
fn bound_holds_on_real_disks() {
    for driver in drivers() {
        let options = FilesOptions {
            cache_max_age_ms: 100,
            ..FilesOptions::default()
        };
        let mut server = TestServer::real("/", &options, driver);
        for round in 0..5_u8 {
            server.add_at(b"f", &[round; 1000], LONG_AGO_S + u64::from(round));
            if round > 0 {
                server.advance(150);
            }
            (0..4).for_each(|_| assert_eq!(server.get("/f").body, [round; 1000]));
        }
    }
}

#[test]
fn recently_changed_objects_are_not_cached() {
    let mut server = TestServer::simulated("/", &FilesOptions::default(), 1);
    let now_s = 1_790_000_000;
    // The same length and time: the version does not reveal the change.
    server.add_at(b"f", b"one", now_s);
    assert_eq!(server.get("/f").body, b"one");
    server.add_at(b"f", b"two", now_s);
    assert_eq!(server.get("/f").body, b"two");
    // A time in the future is not cached either, and is not sent to clients.
    server.add_at(b"f", b"six", now_s + 1_000_000);
    let reply = server.get("/f");
    assert_eq!(reply.field("last-modified"), reply.field("date"));
    server.add_at(b"f", b"ten", now_s + 1_000_000);
    assert_eq!(server.get("/f").body, b"ten");
}

/// Writes a file in place, and gives it a modification time.
fn write_at(server: &TestServer, name: &[u8], content: &[u8], modified_ns: i64) {
    let how = OpenHow {
        create: Create::IfMissing,
        ..OpenHow::create_new(0o644)
    };
    let file = server.root().open(name, how).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.set_modified(modified_ns).unwrap();
}

/// Reproducible builds give all files one time, and write them over each other.
#[test]
fn files_of_one_time_and_size_are_told_apart() {
    const SECOND: i64 = 1_000_000_000;
    let options = FilesOptions {
        cache_max_age_ms: 100,
        ..FilesOptions::default()
    };
    let long_ago = LONG_AGO_S as i64 * SECOND;
    for size in [10, 200_000] {
        let (old, new) = (vec![b'o'; size], vec![b'n'; size]);
        for modified_ns in [0, SECOND, -SECOND, long_ago, long_ago + 1] {
            on_all_backends(&options, |server| {
                let at = format!("{}, {size} bytes, {modified_ns} ns", server.name);
                write_at(server, b"f", &old, modified_ns);
                let first = server.get("/f");
                if modified_ns < 0 {
                    // As in listings and archives.
                    let shown = first.field("last-modified");
                    assert_eq!(shown, Some("Thu, 01 Jan 1970 00:00:00 GMT"), "{at}");
                }
                (0..4).for_each(|_| assert!(server.get("/f").body == old, "{at}"));
                server.advance(150);
                assert_eq!(server.get("/f").etag(), first.etag(), "{at}");
                write_at(server, b"f", &new, modified_ns);
                server.advance(150);
                (0..4).for_each(|_| assert!(server.get("/f").body == new, "{at}"));
                if modified_ns % SECOND != 0 {
                    return; // No tool sets such a time again by chance.
                }
                let tag = first.etag().to_owned();
                let conditional = format!("GET /f\nIf-None-Match: {tag}");
                let reply = server.request(&conditional, b"");
                assert!(reply.status == 200 && reply.body == new, "{at}");
                let rest = format!("GET /f\nRange: bytes=5-\nIf-Range: {tag}");
                let reply = server.request(&rest, b"");
                assert!(reply.status == 200 && reply.body == new, "{at}");
                let tag = reply.etag().to_owned();
                let conditional = format!("GET /f\nIf-None-Match: {tag}");
                assert_eq!(server.request(&conditional, b"").status, 304, "{at}");
            });
        }
    }
}

#[test]
fn cache_is_bounded_and_keeps_hot_objects() {
    let options = FilesOptions {
        cache_bytes_max: 200_000,
        ..FilesOptions::default()
    };
    let mut server = TestServer::simulated("/", &options, 1);
    server.add("hot", &pattern(1000));
    for i in 0..400 {
        server.add(&format!("cold{i}"), &pattern(2000));
    }
    let mut operations = 0;
    for i in 0..400 {
        operations += get(&mut server, "/hot").1;
        assert_eq!(get(&mut server, &format!("/cold{i}")).0, pattern(2000));
    }
    let first = get(&mut server, "/hot").1;
    assert!(
        operations < 10 && first == 0,
        "the hot object was evicted: {operations}"
    );
    assert!(
        get(&mut server, "/cold0").1 > 0,
        "a cold object was not evicted"
    );
    server.add("large", &pattern(64 * 1024));
    for _ in 0..3 {
        assert!(
            get(&mut server, "/large").1 > 0,
            "the object is too large for this cache"
        );
    }
}

/// Only the object that changes repeatedly is evicted each time.
#[test]
fn changing_objects_do_not_evict_others() {
    let mut server = TestServer::simulated("/", &writable(), 1);
    for i in 0..50 {
        server.add(&format!("f{i}"), &pattern(100 + i));
        assert_eq!(get(&mut server, &format!("/f{i}")).0, pattern(100 + i));
    }
    for round in 0..300 {
        server.put("/changing", &pattern(round));
        for _ in 0..2 {
            assert_eq!(get(&mut server, "/changing").0, pattern(round));
        }
        server.delete("/f7");
        assert_eq!(server.get("/f7").status, 404);
        server.add("f7", &pattern(round + 1));
        assert_eq!(get(&mut server, "/f7").0, pattern(round + 1));
        assert_eq!(get(&mut server, "/f7").1, 0, "the object is cached again");
    }
    for i in (0..50).filter(|i| *i != 7) {
        assert_eq!(get(&mut server, &format!("/f{i}")).1, 0, "f{i}");
    }
}

#[test]
fn large_file_is_opened_once_within_the_bound() {
    for seed in 1..5 {
        let mut server = TestServer::simulated("/", &writable(), seed);
        server.add("f", &pattern(300_000));
        // A HEAD, because the simulator reads content in pieces of varying size.
        let cost = |server: &mut TestServer| {
            let before = server.disk().operations();
            assert_eq!(server.request("HEAD /f", b"").status, 200);
            server.disk().operations() - before
        };
        let first = cost(&mut server);
        let second = cost(&mut server);
        assert!(
            second < first,
            "the file was opened again: {first}, {second}"
        );
        server.advance(FRESH_MS + 100);
        assert!(cost(&mut server) > second, "the file was not checked again");
        server.put("/f", &pattern(400_000));
        assert_eq!(get(&mut server, "/f").0.len(), 400_000);
        server.delete("/f");
        assert_eq!(server.get("/f").status, 404);
    }
}

/// The number of descriptors of this process for files of the folder.
fn open_files(server: &TestServer) -> usize {
    let folder = server.path().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.starts_with(folder) && target.extension().is_some())
        .count()
}

#[test]
fn open_files_are_few_and_closed_soon() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let few = FilesOptions {
        cache_files_max: 4 * cores,
        cache_max_age_ms: 600_000,
        ..FilesOptions::default()
    };
    for driver in drivers() {
        for options in [FilesOptions::default(), few.clone()] {
            let mut server = TestServer::real("/", &options, driver);
            for i in 0..30 {
                server.add(&format!("{i}.bin"), &pattern(100_000));
            }
            let mut most = 0;
            for i in 0..30 {
                assert_eq!(server.get(&format!("/{i}.bin")).body.len(), 100_000);
                most = most.max(open_files(&server));
            }
            assert!(most <= options.cache_files_max, "{most}");
            // However long cached content may be used.
            wait_until(&mut server, |server| open_files(server) == 0);
        }
    }
}

#[test]
fn idle_files_are_closed_when_descriptors_are_scarce() {
    for seed in 1..5 {
        // Room for two open files.
        let budget = Descriptors::new(4);
        let options = FilesOptions {
            descriptors: budget.clone(),
            ..FilesOptions::default()
        };
        let mut server = TestServer::simulated("/", &options, seed);
        let content = vec![b'x'; 100_000];
        server.add("a", &content);
        server.add("b", &content);
        assert_eq!(server.get("/a").body, content);
        assert_eq!(budget.used().files, 1, "the file stays open");
        let first = budget.open_file(FileUse::Download).unwrap();
        assert_eq!(server.get("/b").body, content);
        // The other file was closed for it. While files are scarce, the cache keeps none.
        assert_eq!(budget.used().files, 1);
        let second = budget.open_file(FileUse::Brief).unwrap();
        assert_eq!(
            server.get("/a").status,
            503,
            "closing idle files is not enough"
        );
        drop((first, second));
        assert_eq!(server.get("/a").body, content);
    }
}

#[test]
fn file_changed_by_another_program_is_never_mixed() {
    for seed in 1..5 {
        let mut server = TestServer::simulated("/", &FilesOptions::default(), seed);
        server.add("f", &[b'a'; 300_000]);
        let old = server.get("/f").etag().to_owned();
        // The same file with another length, while the server keeps it open.
        server.add_at(b"f", &[b'b'; 310_000], LONG_AGO_S + 10);
        let rest = format!("GET /f\nRange: bytes=150000-\nIf-Range: {old}");
        let reply = server.request(&rest, b"");
        assert_eq!((reply.status, reply.body.len()), (200, 310_000));
        assert_eq!(server.get("/f").body, [b'b'; 310_000]);
    }
}

#[test]
fn second_server_of_the_same_files_closes_its_files() {
    let driver = onrush::DriverPreference::Epoll;
    let mut server = TestServer::real("/", &FilesOptions::default(), driver);
    server.add("f.bin", &pattern(100_000));
    for _ in 0..3 {
        // Often enough that both workers serve one.
        (0..8).for_each(|_| assert_eq!(server.get("/f.bin").body.len(), 100_000));
        server.restart(driver);
    }
    (0..8).for_each(|_| assert_eq!(server.get("/f.bin").body.len(), 100_000));
    wait_until(&mut server, |server| open_files(server) == 0);
}
