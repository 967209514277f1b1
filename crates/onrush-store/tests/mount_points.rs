//! Names at which something is mounted, and bind mounts of what the folder has elsewhere.

use crate::common::*;
use crate::mount_namespace::{self, run};
use crate::mounts::{copy, open};
use onrush_store::*;
use std::path::PathBuf;

/// The folder with the mounts `disk` and `bound`, in the process that has them.
fn with_mounts(name: &str) -> Option<PathBuf> {
    mount_namespace::with_mounts(module_path!(), name)
}

/// A bind mount shows a folder at another path. What contains the folder contains what is there.
#[test]
fn a_bind_mount_is_beneath_the_folder_that_contains_what_it_shows() {
    let name = "a_bind_mount_is_beneath_the_folder_that_contains_what_it_shows";
    let Some(dir) = with_mounts(name) else {
        return;
    };
    run(
        &dir,
        "mkdir -p \"$1/other/a b/x\" \"$1/disk/in\" && \
         mount --bind \"$1/other/a b\" \"$1/disk/in\"",
    );
    let folder = open(&dir);
    put(&folder, "other/a b/x/object", b"1").unwrap();
    let overlap = |from: &str, to: &str| block_on(folder.overlap(&key(from), &key(to))).unwrap();
    for above in ["other", "other/a b", "bound", "bound/a b", "bound/a b/x"] {
        assert_eq!(
            overlap("disk/in/x/object", above),
            Overlap::Contains,
            "{above}"
        );
        assert_eq!(
            overlap(above, "disk/in/x/new/folder"),
            Overlap::Beneath,
            "{above}"
        );
    }
    assert_eq!(overlap("disk/in/x", "other/a b/x"), Overlap::Same);
    put(&folder, "other/c/object", b"2").unwrap();
    put(&folder, "disk/d/object", b"3").unwrap();
    for apart in ["other/c", "bound/c", "disk/d"] {
        assert_eq!(overlap("disk/in/x", apart), Overlap::None, "{apart}");
        assert_eq!(overlap(apart, "disk/in/x"), Overlap::None, "{apart}");
    }
}

/// As containers mount a file of their configuration.
#[test]
fn a_mount_point_is_not_replaced_or_deleted() {
    let Some(dir) = with_mounts("a_mount_point_is_not_replaced_or_deleted") else {
        return;
    };
    run(
        &dir,
        "echo shown >\"$1/shown\" && touch \"$1/point\" \"$1/disk/point\" && \
         mount --bind \"$1/shown\" \"$1/point\" && \
         mount --bind \"$1/shown\" \"$1/disk/point\"",
    );
    let folder = open(&dir);
    put(&folder, "source", b"source").unwrap();
    let refused = Err(StoreError::MountPoint);
    for point in ["point", "disk/point"] {
        let at = key(point);
        assert_eq!(block_on(folder.existing_object(&at)).map(drop), refused);
        // Before the first byte, if there are too many for memory.
        let staged = block_on(folder.stage(&at, Condition::None, Some(20_000)));
        assert_eq!(staged.map(drop), refused, "{point}");
        assert_eq!(put(&folder, point, b"new").map(drop), refused, "{point}");
        assert_eq!(copy(&folder, "source", point).map(drop), refused, "{point}");
        for (from, to) in [("source", point), (point, "moved")] {
            let renamed = block_on(folder.rename(relocation(from, to), Kind::File));
            assert_eq!(renamed.map(drop), refused, "{from} {to}");
        }
        assert_eq!(delete(&folder, point).map(drop), refused, "{point}");
        assert_eq!(get(&folder, point).unwrap(), b"shown\n", "{point}");
    }
    let deleted = block_on(folder.delete(&key("bound"), Kind::Directory, Condition::None));
    assert!(
        matches!(deleted, Err(StoreError::MountPoint | StoreError::NotEmpty)),
        "{deleted:?}"
    );
    assert_eq!(get(&folder, "source").unwrap(), b"source");
}
