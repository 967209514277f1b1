//! Other file systems beneath the folder: bind mounts and tmpfs in a mount namespace of the test,
//! and mounts of the simulated disk.

use crate::common::*;
use crate::edge_common::wait_until;
use crate::mount_namespace::{self, AWAY, BACK, run};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LARGE: usize = 200_000;

/// The folder with the mounts `disk` and `bound`, in the process that has them.
fn with_mounts(name: &str) -> Option<PathBuf> {
    mount_namespace::with_mounts(module_path!(), name)
}

pub(crate) fn open(dir: &Path) -> Folder {
    Folder::open(dir, BlockingPool::threads(1, 16), FolderOptions::default()).unwrap()
}

/// Gives the mount at `dir` other options.
pub(crate) fn remount(dir: &Path, options: &str) {
    let mut mount = Command::new("mount");
    mount.arg("-o").arg(format!("remount,{options}"));
    // Without a source, mount(8) adds the options that the mount has, and in a user namespace the
    // kernel refuses `uid=` and `gid=` among them.
    let status = mount.arg("none").arg(dir).status().unwrap();
    assert!(status.success(), "{options}");
}

/// All names beneath a folder of the machine, without folders.
pub(crate) fn files(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path.to_string_lossy().into_owned()),
        }
    }
    all
}

/// Bytes that wait to be continued, and the commit after that.
pub(crate) fn put_in_steps(folder: &Folder, at: &str, whole: &[u8]) -> Result<Committed> {
    block_on(async {
        let at = key(at);
        let mut upload = folder.stage(&at, Condition::None, None).await?;
        let (first, second) = whole.split_at(whole.len() / 2);
        upload.write(first.to_vec()).await?;
        let kept = upload.keep().await?;
        drop(upload);
        let mut upload = folder.resume(&at, Condition::None, &kept).await?;
        upload.write(second.to_vec()).await?;
        let committed = upload.commit().await?;
        folder.discard(&kept).await?;
        Ok(committed)
    })
}

/// A copy, by the operation of the store.
pub(crate) fn copy(folder: &Folder, from: &str, to: &str) -> Result<Committed> {
    block_on(folder.copy(relocation(from, to)))
}

/// Every way to write creates and replaces objects on another file system, at its top and in
/// folders that are made.
fn assert_all_writes_work(folder: &Folder, mount: &str) {
    put(folder, "source", &body(LARGE)).unwrap();
    for at in ["top", "new/folder/object"] {
        let at = format!("{mount}/{at}");
        let expect = |written: Result<Committed>, created: bool, len: usize| {
            let written = written.unwrap_or_else(|error| panic!("{at}, {len}: {error}"));
            assert_eq!(written.created, created, "{at}, {len}");
            let (found, metadata) = get_both(folder, &at).unwrap();
            assert!(found == body(len), "{at}, {len}");
            (found, metadata)
        };
        expect(put(folder, &at, &body(3)), true, 3);
        expect(put(folder, &at, &body(LARGE)), false, LARGE);
        expect(put(folder, &at, &body(5)), false, 5);
        delete(folder, &at).unwrap();
        expect(put(folder, &at, &body(LARGE + 1)), true, LARGE + 1);
        expect(put_in_steps(folder, &at, &body(LARGE)), false, LARGE);
        delete(folder, &at).unwrap();
        expect(put_in_steps(folder, &at, &body(LARGE + 2)), true, LARGE + 2);
        let (_, metadata) = expect(copy(folder, "source", &at), false, LARGE);
        if folder.keeps_metadata() {
            assert_eq!(metadata, metadata_of(&body(LARGE)));
        }
        delete(folder, &at).unwrap();
        expect(copy(folder, "source", &at), true, LARGE);
        let refused = put_if(folder, &at, b"x", Condition::Absent);
        assert_eq!(refused, Err(StoreError::PreconditionFailed));
        // A rename would not be atomic, and nothing is lost.
        for (from, to) in [("source", &at[..]), (&at, "target")] {
            let moved = block_on(folder.rename(relocation(from, to), Kind::File));
            assert_eq!(moved, Err(StoreError::OtherFileSystem), "{from} {to}");
            assert!(get(folder, from).unwrap() == body(LARGE));
        }
        let moved = block_on(folder.rename(relocation(&at, format!("{mount}/moved")), Kind::File));
        assert_eq!(moved.map(|moved| moved.created), Ok(at.ends_with("top")));
        put(folder, &at, b"x").unwrap();
    }
}

/// What is staged there cannot be named by clients, and is not an object.
fn assert_staging_is_hidden(folder: &Folder, mount: &str) {
    let how = ListHow {
        hidden: true,
        ..ListHow::default()
    };
    let listed = names(&list(folder, Some(mount), how).unwrap());
    assert_eq!(listed, ["moved", "new", "top"]);
    for at in ["", "/staging", "/uploads", "-1"] {
        for at in [
            format!("{mount}/.onrush-staging{at}"),
            format!("{mount}/.ONRUSH-Staging{at}"),
        ] {
            assert!(key(&at).reserved());
            assert_eq!(get(folder, &at), Err(StoreError::NotFound), "{at}");
            assert_eq!(put(folder, &at, b"x"), Err(StoreError::Forbidden), "{at}");
            assert_eq!(delete(folder, &at), Err(StoreError::Forbidden), "{at}");
            let listed = list(folder, Some(&at), ListHow::default());
            assert_eq!(listed, Err(StoreError::NotFound), "{at}");
        }
    }
    let bytes = folder.count_bytes(Some(&key(mount))).unwrap();
    // Two small objects and two folders besides.
    assert_eq!(bytes, LARGE as u64 + 4 * COUNTED_BYTES_MIN);
}

#[test]
fn every_write_reaches_another_file_system() {
    let Some(dir) = with_mounts("every_write_reaches_another_file_system") else {
        return;
    };
    for mount in ["disk", "bound"] {
        let folder = open(&dir);
        assert_all_writes_work(&folder, mount);
        assert_staging_is_hidden(&folder, mount);
        block_on(folder.pool().run(|| ())).unwrap();
        let at = dir.join(mount).join(".onrush-staging");
        assert_eq!(files(&at), Vec::<String>::new());
        assert_eq!(files(&dir.join(".onrush/staging")), Vec::<String>::new());
        drop(folder);
        let own = std::fs::read_dir(at.join("staging")).unwrap().count();
        assert_eq!(own, 0, "a dropped store leaves no folder");
    }
}

/// A link to a folder of another file system.
#[test]
fn links_lead_to_another_file_system() {
    let Some(dir) = with_mounts("links_lead_to_another_file_system") else {
        return;
    };
    if temp_lacks(&[Ability::Symlinks]) {
        return;
    }
    std::fs::create_dir(dir.join("disk/below")).unwrap();
    std::os::unix::fs::symlink("disk/below", dir.join("link")).unwrap();
    let folder = open(&dir);
    put(&folder, "link/object", &body(LARGE)).unwrap();
    assert!(get(&folder, "disk/below/object").unwrap() == body(LARGE));
    put(&folder, "disk/other", &body(LARGE)).unwrap();
    assert!(get(&folder, "disk/other").unwrap() == body(LARGE));
}

/// A process that ended while it staged there: the next one that needs the folder removes what is
/// left. What is kept to be continued stays.
#[test]
fn staged_files_of_dead_processes_are_removed() {
    let Some(dir) = with_mounts("staged_files_of_dead_processes_are_removed") else {
        return;
    };
    let at = key("disk/kept");
    let folder = open(&dir);
    let kept = block_on(async {
        let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
        upload.write(body(LARGE)).await.unwrap();
        upload.keep().await.unwrap()
    });
    drop(folder);
    let staging = dir.join("disk/.onrush-staging");
    let dead = staging.join("staging/4711-dead");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("0"), "x").unwrap();
    let folder = open(&dir);
    put(&folder, "disk/object", &body(3)).unwrap();
    assert!(!dead.exists());
    assert_eq!(files(&staging).len(), 1);
    block_on(async {
        let upload = folder.resume(&at, Condition::None, &kept).await.unwrap();
        upload.commit().await.unwrap();
    });
    assert!(get(&folder, "disk/kept").unwrap() == body(LARGE));
    assert_eq!(files(&staging), Vec::<String>::new());
    // What no client continues is removed by its age.
    block_on(async {
        let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
        upload.write(body(LARGE)).await.unwrap();
        upload.keep().await.unwrap();
        drop(upload);
        while folder.discard_older(Duration::ZERO).await.unwrap() == 0 {}
    });
    assert_eq!(files(&staging), Vec::<String>::new());
}

/// A server that starts before the disk is mounted says so, and the upload is there afterwards.
#[test]
fn kept_files_outlive_a_time_without_their_mount() {
    let Some(dir) = with_mounts("kept_files_outlive_a_time_without_their_mount") else {
        return;
    };
    let at = key("bound/object");
    let keep = |folder: &Folder| {
        block_on(async {
            let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
            upload.write(body(LARGE)).await.unwrap();
            upload.keep().await.unwrap()
        })
    };
    let folder = open(&dir);
    let (kept, canceled) = (keep(&folder), keep(&folder));
    drop(folder);
    for away in AWAY {
        run(&dir, away);
        let folder = open(&dir);
        block_on(async {
            let resumed = folder.resume(&at, Condition::None, &kept).await;
            assert_eq!(resumed.map(drop), Err(StoreError::Unavailable), "{away}");
            let found = folder.is_kept(&kept).await;
            assert_eq!(
                found,
                Ok(true),
                "{away}: other uploads go on, and its age ends it"
            );
            assert_eq!(folder.published(&at, &kept).await, Ok(None));
            assert_eq!(folder.discard(&canceled).await, Ok(()), "its age ends it");
        });
    }
    run(&dir, BACK);
    let folder = open(&dir);
    block_on(async {
        let upload = folder.resume(&at, Condition::None, &kept).await.unwrap();
        upload.commit().await.unwrap();
    });
    assert!(get(&folder, "bound/object").unwrap() == body(LARGE));
}

/// The next process removes it there as well, before it needs the folder.
#[test]
fn what_no_record_names_is_removed_on_other_file_systems() {
    let name = "what_no_record_names_is_removed_on_other_file_systems";
    let Some(dir) = with_mounts(name) else {
        return;
    };
    for mount in ["disk", "bound"] {
        let keep = |folder: &Folder| {
            block_on(async {
                let at = key(format!("{mount}/object"));
                let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
                upload.write(body(5)).await.unwrap();
                upload.keep().await.unwrap()
            })
        };
        // The last job of a process may end a moment later.
        let ended = || {
            let staging = dir.join(mount).join(".onrush-staging/staging");
            let is_empty = || std::fs::read_dir(&staging).unwrap().next().is_none();
            wait_until("no process has a folder in staging", is_empty);
        };
        let folder = open(&dir);
        let (known, _unknown) = (keep(&folder), keep(&folder));
        drop(folder);
        ended();
        let left = || files(&dir.join(mount).join(".onrush-staging/uploads")).len();
        assert_eq!(left(), 2);
        let folder = open(&dir);
        assert_eq!(
            folder.discard_unknown(&[known], folder.swaps()),
            Ok(1),
            "{mount}"
        );
        assert_eq!(left(), 1, "{mount}");
        drop(folder);
        ended();
        let folder = open(&dir);
        assert_eq!(
            folder.discard_unknown(&[], folder.swaps()),
            Ok(1),
            "{mount}"
        );
    }
}

/// What cannot succeed is refused before the first byte.
#[test]
fn a_file_system_without_a_place_refuses_before_the_bytes() {
    let Some(dir) = with_mounts("a_file_system_without_a_place_refuses_before_the_bytes") else {
        return;
    };
    let folder = open(&dir);
    let remounted = |options: &str| remount(&dir.join("disk"), options);
    remounted("ro");
    let stage = |bytes: usize| {
        let at = key("disk/object");
        block_on(folder.stage(&at, Condition::None, Some(bytes as u64))).err()
    };
    assert_eq!(stage(LARGE), Some(StoreError::ReadOnly));
    remounted("rw,size=1m");
    let full = stage(2 << 20);
    assert!(matches!(full, Some(StoreError::Full(_))), "{full:?}");
    assert_eq!(stage(LARGE), None);
    put(&folder, "disk/object", &body(LARGE)).unwrap();
    // Without a limit, tmpfs says that it has no blocks, as ramfs and some FUSE programs do.
    remounted("size=0");
    assert_eq!(stage(2 << 20), None);
    put(&folder, "disk/object", &body(2 << 20)).unwrap();
}

/// An object is what was kept only if both are on one file system: others have the same inodes.
#[test]
fn a_kept_file_is_published_on_its_file_system_only() {
    let disk = with_two_mounts(1);
    let folder = open_on(&disk);
    let at = key("d/object");
    let kept = block_on(async {
        let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
        upload.write(body(LARGE)).await.unwrap();
        let kept = upload.keep().await.unwrap();
        assert_eq!(folder.published(&at, &kept).await, Ok(None));
        upload.commit().await.unwrap();
        kept
    });
    let published = |kept: &PartialUpload| block_on(folder.published(&at, kept));
    assert_eq!(published(&kept), Ok(Some(LARGE as u64)));
    let place = kept.place.strip_suffix(b"\0d").unwrap();
    for mount in [&b""[..], b"\0outer/mounted", b"\0missing"] {
        let other = PartialUpload {
            place: [place, mount].concat(),
            ..kept.clone()
        };
        assert_eq!(published(&other), Ok(None), "{}", mount.escape_ascii());
    }
}

/// A disk that is mounted while an upload is in progress, staged or kept: the bytes reach it.
#[test]
fn uploads_survive_a_mount_in_their_way() {
    for kept in [false, true] {
        for (durability, old) in [
            (Durability::Full, false),
            (Durability::Full, true),
            (Durability::None, true),
        ] {
            let disk = SimFs::new(1);
            let options = FolderOptions {
                durability,
                ..FolderOptions::default()
            };
            let root = disk.root().unwrap();
            let folder = Folder::on(root, BlockingPool::inline(), options).unwrap();
            let backend = Backend::Sim(disk.clone());
            backend.root().create_dir(b"d", 0o755).unwrap();
            let at = key("d/object");
            block_on(async {
                let size = Some(LARGE as u64);
                let mut upload = folder.stage(&at, Condition::None, size).await.unwrap();
                upload.write(body(LARGE)).await.unwrap();
                upload.set_metadata(metadata_of(&body(LARGE))).unwrap();
                if kept {
                    upload.keep().await.unwrap();
                }
                disk.mount(b"d").unwrap();
                if old {
                    put(&folder, "d/object", b"old").unwrap();
                }
                let committed = upload.commit().await.unwrap();
                assert_eq!(committed.created, !old);
            });
            let (found, metadata) = get_both(&folder, "d/object").unwrap();
            assert!(found == body(LARGE) && metadata == metadata_of(&found));
            assert_eq!(staged(&folder, &backend), 0);
            if kept {
                let uploads = backend.root().open_dir(b".onrush/uploads").unwrap();
                assert_eq!(entries(&uploads), [], "its bytes were copied");
            }
        }
    }
}

/// File systems that refuse renames between some of their folders, though they are one mount.
#[test]
fn bytes_are_copied_where_a_rename_is_refused() {
    for old in [false, true] {
        for len in [5, LARGE] {
            let disk = SimFs::new(1);
            let root = disk.root().unwrap();
            let folder = Folder::on(root, BlockingPool::inline(), FolderOptions::default());
            let folder = folder.unwrap();
            let backend = Backend::Sim(disk.clone());
            backend.root().create_dir(b"d", 0o755).unwrap();
            if old {
                put(&folder, "d/object", b"old").unwrap();
            }
            disk.refuse_renames_between_folders(true);
            let committed = put(&folder, "d/object", &body(len)).unwrap();
            assert_eq!(committed.created, !old);
            let (found, metadata) = get_both(&folder, "d/object").unwrap();
            assert!(found == body(len) && metadata == metadata_of(&found));
            assert_eq!(staged(&folder, &backend), 0);
            let d = backend.root().open_dir(b"d").unwrap();
            assert_eq!(entries(&d).len(), 1, "nothing is left next to the object");
        }
    }
}

/// An error and a power cut at every operation of a put to another file system: the object is the
/// old one or the new one, and a put that succeeded stays.
#[test]
fn faults_leave_the_old_or_the_new_object() {
    let prepare = || {
        let disk = SimFs::new(3);
        let root = disk.root().unwrap();
        root.create_dir(b"d", 0o755).unwrap();
        root.sync().unwrap();
        disk.mount(b"d").unwrap();
        let open = || Folder::on(disk.root().unwrap(), BlockingPool::inline(), options());
        let folder = open().unwrap();
        put(&folder, "d/object", b"old").unwrap();
        (disk, folder)
    };
    fn options() -> FolderOptions {
        FolderOptions::default()
    }
    let (disk, folder) = prepare();
    let before = disk.operations();
    put(&folder, "d/object", &body(LARGE)).unwrap();
    let count = disk.operations() - before;
    for number in 0..count {
        for cut in [None, Some(Cut::Before), Some(Cut::During), Some(Cut::After)] {
            let (disk, folder) = prepare();
            match cut {
                Some(cut) => disk.power_cut_at(disk.operations() + number, cut),
                None => disk.fail_at(disk.operations() + number, 5),
            }
            let written = put(&folder, "d/object", &body(LARGE));
            if cut.is_none() && written.is_err() {
                assert!(get(&folder, "d/object").unwrap() == b"old", "{number}");
            }
            disk.power_cut();
            drop(folder);
            disk.restart();
            let folder = Folder::on(disk.root().unwrap(), BlockingPool::inline(), options());
            let (found, metadata) = get_both(&folder.unwrap(), "d/object").unwrap();
            let is_new = found == body(LARGE);
            assert!(is_new || found == b"old", "{number} {cut:?}: torn");
            assert!(is_new || written.is_err(), "{number} {cut:?}: lost");
            assert_eq!(metadata, metadata_of(&found), "{number} {cut:?}");
        }
    }
}

/// A disk with other file systems at `d` and at `outer/mounted`.
fn with_two_mounts(seed: u64) -> SimFs {
    let disk = SimFs::new(seed);
    disk.set_journaled(true);
    let root = disk.root().unwrap();
    for folder in [&b"d"[..], b"outer"] {
        root.create_dir(folder, 0o755).unwrap();
    }
    (root.open_dir(b"outer").unwrap())
        .create_dir(b"mounted", 0o755)
        .unwrap();
    disk.sync_all();
    for folder in [&b"d"[..], b"outer/mounted"] {
        disk.mount(folder).unwrap();
    }
    disk
}

fn open_on(disk: &SimFs) -> Folder {
    let options = FolderOptions::default();
    Folder::on(disk.root().unwrap(), BlockingPool::inline(), options).unwrap()
}

/// The entries in the staging folders of all file systems, beneath those of processes.
fn all_staged(disk: &SimFs) -> Vec<String> {
    let root = disk.root().unwrap();
    let mut all = Vec::new();
    for reserved in [
        ".onrush",
        "d/.onrush-staging",
        "outer/mounted/.onrush-staging",
    ] {
        let Ok(staging) = root.open_dir(format!("{reserved}/staging").as_bytes()) else {
            continue;
        };
        for (process, _) in entries(&staging) {
            for (name, _) in entries(&staging.open_dir(&process).unwrap()) {
                all.push(format!("{reserved}: {}", name.escape_ascii()));
            }
        }
    }
    all
}

fn replace(folder: &Folder, from: &str, to: &str, kind: Kind) -> Result<Committed> {
    block_on(folder.replace(relocation(from, to), kind, ShownNames::all()))
}

/// A copy of the object `from`, or of its only object `a` if it is a folder, that replaces what is
/// at `to`, as the object server makes it.
fn copy_over(folder: &Folder, from: &str, to: &str, kind: Kind) -> Result<Committed> {
    block_on(async {
        let staged = folder.stage_copy(&key(from), &key(to)).await?;
        let at = staged.key().clone();
        assert!(at.reserved());
        let mut copy = Relocation {
            to: at.clone(),
            ..relocation(from, "x")
        };
        if kind == Kind::Directory {
            folder.create_folder(&at).await?;
            copy.from = key(format!("{from}/a"));
            copy.to = key([at.as_bytes(), b"/a"].concat());
        }
        folder.copy(copy).await?;
        let publish = Relocation {
            from: at,
            ..relocation("x", to)
        };
        folder.replace(publish, kind, ShownNames::all()).await
    })
}

/// What replaces something on another file system: a move is refused and loses nothing, and a copy
/// is made on the file system of what it replaces.
#[test]
fn what_is_replaced_on_another_file_system() {
    let objects = |kind, name: &str| match kind {
        Kind::File => name.to_owned(),
        Kind::Directory => format!("{name}/a"),
    };
    for (from, to) in [
        ("new", "d/old"),
        ("d/new", "old"),
        ("d/new", "outer/mounted/old"),
    ] {
        for from_kind in [Kind::File, Kind::Directory] {
            for to_kind in [Kind::File, Kind::Directory] {
                let at = format!("{from} {from_kind:?} to {to} {to_kind:?}");
                let disk = with_two_mounts(1);
                let folder = open_on(&disk);
                let (source, target) = (objects(from_kind, from), objects(to_kind, to));
                put(&folder, &source, b"new").unwrap();
                put(&folder, &target, b"old").unwrap();
                let refused = replace(&folder, from, to, from_kind);
                assert_eq!(refused, Err(StoreError::OtherFileSystem), "{at}");
                assert_eq!(get(&folder, &source).as_deref(), Ok(&b"new"[..]), "{at}");
                assert_eq!(get(&folder, &target).as_deref(), Ok(&b"old"[..]), "{at}");
                assert_eq!(all_staged(&disk), Vec::<String>::new(), "{at}");
                let copied = copy_over(&folder, from, to, from_kind).unwrap();
                assert!(!copied.created, "{at}");
                assert_eq!(get(&folder, &source).as_deref(), Ok(&b"new"[..]), "{at}");
                let published = objects(from_kind, to);
                assert_eq!(get(&folder, &published).as_deref(), Ok(&b"new"[..]), "{at}");
                if published != target {
                    assert!(get(&folder, &target).is_err(), "{at}");
                }
                assert_eq!(all_staged(&disk), Vec::<String>::new(), "{at}");
            }
        }
    }
}

/// The same on file systems of the kernel, which also refuses to rename the top of a mount.
#[test]
fn the_kernel_replaces_on_one_file_system_only() {
    let Some(dir) = with_mounts("the_kernel_replaces_on_one_file_system_only") else {
        return;
    };
    let folder = open(&dir);
    put(&folder, "new/a", b"new").unwrap();
    for mount in ["disk", "bound"] {
        let old = format!("{mount}/old");
        let target = format!("{old}/a");
        put(&folder, &target, b"old").unwrap();
        for to in [&old[..], mount] {
            let refused = replace(&folder, "new", to, Kind::Directory);
            assert_eq!(refused, Err(StoreError::OtherFileSystem), "{to}");
        }
        let refused = copy_over(&folder, "new", mount, Kind::Directory);
        assert_eq!(refused, Err(StoreError::OtherFileSystem), "{mount}");
        let moved = block_on(folder.rename(relocation(mount, "moved"), Kind::Directory));
        assert_eq!(moved, Err(StoreError::OtherFileSystem), "{mount}");
        assert_eq!(get(&folder, "new/a").as_deref(), Ok(&b"new"[..]));
        assert_eq!(get(&folder, &target).as_deref(), Ok(&b"old"[..]));
        if mount == "bound" && temp_lacks(&[Ability::Exchange]) {
            continue;
        }
        copy_over(&folder, "new", &old, Kind::Directory).unwrap();
        assert_eq!(get(&folder, &target).as_deref(), Ok(&b"new"[..]));
        put(&folder, &format!("{mount}/next/a"), b"next").unwrap();
        replace(&folder, &format!("{mount}/next"), &old, Kind::Directory).unwrap();
        assert_eq!(get(&folder, &target).as_deref(), Ok(&b"next"[..]));
        block_on(folder.pool().run(|| ())).unwrap();
        let at = dir.join(mount).join(".onrush-staging");
        assert_eq!(files(&at), Vec::<String>::new());
    }
    assert_eq!(files(&dir.join(".onrush/staging")), Vec::<String>::new());
}

/// The top of a mount, or a folder that contains one, is neither replaced nor emptied.
#[test]
fn a_mount_is_not_replaced() {
    let disk = with_two_mounts(1);
    let folder = open_on(&disk);
    for (name, content) in [
        ("new/a", "new"),
        ("d/a", "kept"),
        ("outer/mounted/a", "kept"),
    ] {
        put(&folder, name, content.as_bytes()).unwrap();
    }
    let unchanged = |at: &str| {
        assert_eq!(get(&folder, "new/a").as_deref(), Ok(&b"new"[..]), "{at}");
        for kept in ["d/a", "outer/mounted/a"] {
            assert_eq!(get(&folder, kept).as_deref(), Ok(&b"kept"[..]), "{at}");
        }
        assert_eq!(all_staged(&disk), Vec::<String>::new(), "{at}");
    };
    for to in ["d", "outer/mounted", "outer"] {
        let refused = replace(&folder, "new", to, Kind::Directory);
        assert_eq!(refused, Err(StoreError::OtherFileSystem), "{to}");
        unchanged(to);
        let refused = copy_over(&folder, "new", to, Kind::Directory);
        assert_eq!(refused, Err(StoreError::OtherFileSystem), "{to}");
        unchanged(to);
    }
    // Nor is it moved.
    let moved = block_on(folder.rename(relocation("d", "moved"), Kind::Directory));
    assert_eq!(moved, Err(StoreError::OtherFileSystem));
    let moved = replace(&folder, "d", "new", Kind::Directory);
    assert_eq!(moved, Err(StoreError::OtherFileSystem));
    unchanged("d");
}

/// A power cut at any operation of a move on another file system: the next start completes it, as
/// on the file system of the root folder.
#[test]
fn a_power_cut_leaves_the_old_or_the_new_folder_on_a_mount() {
    let prepare = |seed| {
        let disk = with_two_mounts(seed);
        let folder = open_on(&disk);
        put(&folder, "d/new/a", b"new").unwrap();
        put(&folder, "d/old/a", b"old").unwrap();
        disk.sync_all();
        (disk, folder)
    };
    let run = |folder: &Folder| replace(folder, "d/new", "d/old", Kind::Directory);
    for seed in 0..4 {
        let (disk, folder) = prepare(seed);
        let begin = disk.operations();
        run(&folder).unwrap();
        let count = disk.operations() - begin;
        assert_eq!(get(&folder, "d/old/a").as_deref(), Ok(&b"new"[..]));
        for number in 0..=count {
            for cut in [Cut::Before, Cut::During, Cut::After] {
                let at = format!("seed {seed}, operation {number}, {cut:?}");
                let (disk, folder) = prepare(seed);
                disk.power_cut_at(disk.operations() + number, cut);
                let moved = run(&folder);
                disk.power_cut();
                drop(folder);
                disk.restart();
                let folder = open_on(&disk);
                let found = ["d/new/a", "d/old/a"].map(|name| get(&folder, name).ok());
                let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
                match moved {
                    Ok(_) => assert_eq!(found, [None, new], "{at}"),
                    Err(_) => assert!(
                        found == [new.clone(), old] || found == [None, new],
                        "{at}: {found:?}"
                    ),
                }
                // The first change there removes what is left.
                put(&folder, "d/x", b"x").unwrap();
                assert_eq!(all_staged(&disk), Vec::<String>::new(), "{at}");
            }
        }
    }
}
