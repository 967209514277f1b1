//! Caches of several readers during a change: what has one generation has one content. So when one
//! reader has seen a change, no other one gets what was there before from its cache.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_rt::fs::{Dir, OpenHow};
use onrush_store::*;
use std::sync::{Arc, Mutex};

/// A change, and what it is called.
type Change = (&'static str, fn(&Folder) -> Result<()>);

const CHANGES: [Change; 8] = [
    ("put", |folder| put(folder, "d/a", b"new").map(drop)),
    ("create", |folder| put(folder, "d/new", b"new").map(drop)),
    ("delete", |folder| delete(folder, "d/a").map(drop)),
    ("rename", |folder| {
        block_on(folder.rename(relocation("d/a", "d/new"), Kind::File)).map(drop)
    }),
    ("rename onto another", |folder| {
        block_on(folder.rename(relocation("d/b", "d/a"), Kind::File)).map(drop)
    }),
    ("rename a folder", |folder| {
        block_on(folder.rename(relocation("d", "e"), Kind::Directory)).map(drop)
    }),
    ("replace a folder", |folder| {
        let replaced = folder.replace(
            relocation("other", "d"),
            Kind::Directory,
            ShownNames::default(),
        );
        block_on(replaced).map(drop)
    }),
    ("replace a folder by an object", |folder| {
        let replaced = folder.replace(
            relocation("other/a", "d"),
            Kind::File,
            ShownNames::default(),
        );
        block_on(replaced).map(drop)
    }),
];

/// The objects that readers look at.
const NAMES: [&str; 4] = ["d/a", "d/b", "d/new", "e/a"];

/// The content, if there is an object.
fn content(root: &Dir, name: &str) -> Option<Vec<u8>> {
    let file = root.open(name.as_bytes(), OpenHow::READ).ok()?;
    let mut content = Vec::with_capacity(100);
    file.read_to_vec(&mut content, 100, 0).ok()?;
    Some(content)
}

/// Makes a change while readers look after each operation. `fails`: the operation that fails.
/// Returns the number of the first operation of the change and of the first one after it, and what
/// was wrong.
fn run(
    durability: Durability,
    change: fn(&Folder) -> Result<()>,
    fails: Option<u64>,
) -> (u64, u64, Vec<String>) {
    let disk = SimFs::new(1);
    let options = FolderOptions {
        durability,
        ..FolderOptions::default()
    };
    let folder = Folder::on(disk.root().unwrap(), BlockingPool::inline(), options).unwrap();
    for name in ["d/a", "d/b", "other/a"] {
        put(&folder, name, name.as_bytes()).unwrap();
    }
    let folder = Arc::new(folder);
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let (root, readers, found) = (disk.root().unwrap(), folder.clone(), wrong.clone());
    let mut kept: Vec<(&str, u64, Option<Vec<u8>>)> = Vec::new();
    let mut look = move || {
        for name in NAMES {
            let Some(generation) = readers.generation(&key(name)) else {
                continue;
            };
            let content = content(&root, name);
            for (_, _, before) in kept.iter().filter(|it| (it.0, it.1) == (name, generation)) {
                if *before != content {
                    let text = format!("{name}: {before:?} and {content:?} at {generation}");
                    found.lock().unwrap().push(text);
                }
            }
            kept.push((name, generation, content));
        }
    };
    look();
    let begin = disk.operations();
    if let Some(number) = fails {
        disk.fail_at(number, libc::EIO);
    }
    disk.observe(look);
    let changed = change(&folder);
    assert!(fails.is_some() || changed.is_ok(), "{changed:?}");
    let end = disk.operations();
    // The last look: after the change.
    let _ = put(&folder, "last", b"last");
    disk.observe(|| ());
    let wrong = std::mem::take(&mut *wrong.lock().unwrap());
    (begin, end, wrong)
}

#[test]
fn caches_agree_at_each_moment_of_a_change() {
    for durability in [Durability::Full, Durability::None] {
        for (name, change) in CHANGES {
            let (begin, end, wrong) = run(durability, change, None);
            assert!(wrong.is_empty(), "{durability:?}, {name}: {wrong:?}");
            for number in begin..end {
                let (_, _, wrong) = run(durability, change, Some(number));
                let at = format!("{durability:?}, {name}, operation {number} fails");
                assert!(wrong.is_empty(), "{at}: {wrong:?}");
            }
        }
    }
}
