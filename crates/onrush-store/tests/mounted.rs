//! Mounts beneath the folder that become read-only, and which thread opens their files.

use crate::common::*;
use crate::mount_namespace;
use crate::mounts::{copy, open, put_in_steps, remount};
use onrush_rt::fs::Dir;
use onrush_store::*;
use std::path::PathBuf;

const LARGE: usize = 200_000;

/// See [`mount_namespace::with_mounts`].
fn with_mounts(name: &str) -> Option<PathBuf> {
    mount_namespace::with_mounts(module_path!(), name)
}

/// Every kind of change is refused with the reason, and nothing is lost.
#[test]
fn a_disk_that_becomes_read_only_loses_nothing() {
    let Some(dir) = with_mounts("a_disk_that_becomes_read_only_loses_nothing") else {
        return;
    };
    let folder = open(&dir);
    let remounted = |options: &str| remount(&dir.join("disk"), options);
    put(&folder, "outside", b"outside").unwrap();
    put(&folder, "disk/d/object", &body(LARGE)).unwrap();
    put(&folder, "disk/other", b"other").unwrap();
    remounted("ro");
    let at = key("disk/d/object");
    let refused = Some(StoreError::ReadOnly);
    for len in [3, LARGE] {
        for name in ["disk/d/object", "disk/new", "disk/new/folder/object"] {
            assert_eq!(put(&folder, name, &body(len)).err(), refused, "{name}");
        }
        let absent = put_if(&folder, "disk/new", &body(len), Condition::Absent);
        assert_eq!(absent.err(), refused);
    }
    assert_eq!(
        put_in_steps(&folder, "disk/new", &body(LARGE)).err(),
        refused
    );
    for name in ["disk/other", "disk/d/object"] {
        assert_eq!(delete(&folder, name).err(), refused, "{name}");
        assert_eq!(copy(&folder, "outside", name).err(), refused, "{name}");
    }
    let moved = |from, to, kind| block_on(folder.rename(relocation(from, to), kind));
    assert_eq!(moved("disk/other", "disk/new", Kind::File).err(), refused);
    assert_eq!(
        moved("disk/other", "disk/d/object", Kind::File).err(),
        refused
    );
    assert_eq!(moved("disk/d", "disk/new", Kind::Directory).err(), refused);
    let made = block_on(folder.create_folder(&key("disk/new")));
    assert_eq!(made.err(), refused);
    let set = block_on(folder.replace_properties(&at, b"", b"some"));
    assert_eq!(set.err(), refused);
    let all = || {
        assert!(get(&folder, "disk/d/object").unwrap() == body(LARGE));
        assert_eq!(get(&folder, "disk/other").unwrap(), b"other");
        assert_eq!(get(&folder, "outside").unwrap(), b"outside");
        let listed = list(&folder, Some("disk"), ListHow::default()).unwrap();
        assert_eq!(names(&listed), ["d", "other"]);
    };
    all();
    remounted("rw");
    all();
    put(&folder, "disk/d/object", b"again").unwrap();
    assert_eq!(get(&folder, "disk/d/object").unwrap(), b"again");
}

/// To open a file of another mount may wait for a program or a machine (FUSE, NFS), so only the
/// pool does it.
#[test]
fn a_worker_opens_nothing_on_another_mount() {
    let Some(dir) = with_mounts("a_worker_opens_nothing_on_another_mount") else {
        return;
    };
    let folder = open(&dir);
    // A rename elsewhere may disturb a lookup that does not wait.
    let is_opened = |at: &str| {
        assert_eq!(get(&folder, at).unwrap(), at.as_bytes());
        (0..1000).any(|_| folder.try_get(&key(at)).is_some())
    };
    for at in ["object", "disk/object", "bound/object"] {
        put(&folder, at, at.as_bytes()).unwrap();
        let dir = Dir::open_root(&dir).unwrap();
        // Before Linux 5.12, no lookup is without waiting.
        let expected = at == "object"
            && !temp_lacks(&[Ability::Local])
            && (0..1000).any(|_| dir.open_cached(b"object").is_ok());
        assert_eq!(is_opened(at), expected, "{at}");
    }
}
