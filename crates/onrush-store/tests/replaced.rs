//! What a rename replaces: on each kind of disk, after errors and after power cuts.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::task::{Context, Waker};

pub(crate) const EIO: i32 = 5;
const EACCES: i32 = 13;
const EXDEV: i32 = 18;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

pub(crate) fn replace(folder: &Folder, from: &str, to: &str, kind: Kind) -> Result<Committed> {
    block_on(folder.replace(relocation(from, to), kind, ShownNames::default()))
}

/// A copy of the folder `new` that replaces `old`, as the object server makes it.
async fn copy_over(folder: &Folder) -> Result<Committed> {
    let staged = folder.stage_copy(&key("new"), &key("old")).await?;
    folder.create_folder(staged.key()).await?;
    for name in ["1", "sub/2"] {
        let from = key(format!("new/{name}"));
        let to = [staged.key().as_bytes(), b"/", name.as_bytes()].concat();
        let copy = Relocation {
            to: key(to),
            ..relocation(from.as_bytes(), "x")
        };
        folder.copy(copy).await?;
    }
    let publish = relocation(staged.key().as_bytes(), "old");
    folder
        .replace(publish, Kind::Directory, ShownNames::default())
        .await
}

/// What is renamed or copied from `new` to `old`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    FolderToFolder,
    FileToFolder,
    FolderToFile,
    FileToFile,
    CopyToFolder,
}

pub(crate) const SCENES: [Scene; 5] = [
    Scene::FolderToFolder,
    Scene::FileToFolder,
    Scene::FolderToFile,
    Scene::FileToFile,
    Scene::CopyToFolder,
];

/// What a name has: the objects at and beneath it.
pub(crate) type Found = Vec<(&'static str, Vec<u8>)>;

impl Scene {
    pub(crate) fn put(self, folder: &Folder) {
        for (name, content) in self.target().into_iter().chain(self.source()) {
            put(folder, name, &content).unwrap();
        }
        put(folder, "neighbour", b"neighbour").unwrap();
    }

    fn target(self) -> Found {
        match self {
            Scene::FolderToFile | Scene::FileToFile => vec![("old", b"old".to_vec())],
            _ => vec![("old/1", body(13_000)), ("old/x/y", b"old".to_vec())],
        }
    }

    fn source(self) -> Found {
        match self {
            Scene::FileToFolder | Scene::FileToFile => vec![("new", body(9000))],
            _ => vec![("new/1", body(9000)), ("new/sub/2", b"2".to_vec())],
        }
    }

    /// The new ones at the name of the old ones.
    pub(crate) fn published(self) -> Found {
        match self {
            Scene::FileToFolder | Scene::FileToFile => vec![("old", body(9000))],
            _ => vec![("old/1", body(9000)), ("old/sub/2", b"2".to_vec())],
        }
    }

    fn change(self, folder: &Folder) -> LocalFuture<'_, Result<Committed>> {
        let kind = match self {
            Scene::FolderToFolder | Scene::FolderToFile => Kind::Directory,
            Scene::FileToFolder | Scene::FileToFile => Kind::File,
            Scene::CopyToFolder => return Box::pin(copy_over(folder)),
        };
        folder.replace(relocation("new", "old"), kind, ShownNames::default())
    }

    pub(crate) fn run(self, folder: &Folder) -> Result<Committed> {
        block_on(self.change(folder))
    }
}

/// Everything that the test has put, and what became of it.
pub(crate) fn found(folder: &Folder) -> Found {
    let mut all = Vec::new();
    for name in [
        "new",
        "new/1",
        "new/sub/2",
        "new/x/y",
        "old",
        "old/1",
        "old/sub/2",
        "old/x/y",
    ] {
        if let Ok(content) = get(folder, name) {
            all.push((name, content));
        }
    }
    assert_eq!(get(folder, "neighbour").as_deref(), Ok(&b"neighbour"[..]));
    all
}

/// The names and the lengths: the contents are too long for a message.
pub(crate) fn names_of(found: &Found) -> Vec<(&'static str, usize)> {
    found
        .iter()
        .map(|(name, content)| (*name, content.len()))
        .collect()
}

pub(crate) fn assert_found(folder: &Folder, expected: &Found, at: &str) {
    let found = found(folder);
    assert!(found == *expected, "{at}: {:?}", names_of(&found));
}

pub(crate) fn before(scene: Scene) -> Found {
    [scene.source(), scene.target()].concat()
}

pub(crate) fn after(scene: Scene) -> Found {
    match scene {
        Scene::CopyToFolder => [scene.source(), scene.published()].concat(),
        _ => scene.published(),
    }
}

pub(crate) fn open(disk: &SimFs) -> Folder {
    let (root, pool) = (disk.root().unwrap(), BlockingPool::inline());
    Folder::on(root, pool, FolderOptions::default()).unwrap()
}

/// A disk with the scene on it, durably.
pub(crate) fn prepare(scene: Scene, seed: u64) -> (SimFs, Folder) {
    let disk = SimFs::new(seed);
    disk.set_journaled(true);
    let folder = open(&disk);
    scene.put(&folder);
    disk.sync_all();
    (disk, folder)
}

pub(crate) fn count_operations(scene: Scene, seed: u64) -> u64 {
    let (disk, folder) = prepare(scene, seed);
    let begin = disk.operations();
    scene.run(&folder).unwrap();
    disk.operations() - begin
}

#[test]
fn anything_is_replaced_as_a_whole() {
    for scene in SCENES {
        for backend in [Backend::real(), Backend::memory(), Backend::sim()] {
            if backend.lacks(&[Ability::Exchange]) {
                continue;
            }
            let folder = backend.folder();
            scene.put(&folder);
            assert_found(&folder, &before(scene), &format!("{scene:?}"));
            let generation = folder.generation(&key("old/1"));
            let committed = scene.run(&folder).unwrap();
            // A small file and a folder count 4096.
            let counted = match scene {
                Scene::FolderToFile | Scene::FileToFile => 4096,
                _ => 4096 + 13_000 + 4096 + 4096,
            };
            assert!(!committed.created, "{scene:?}");
            assert_eq!(committed.replaced_bytes, counted, "{scene:?}");
            assert_found(&folder, &after(scene), &format!("{scene:?}"));
            if scene != Scene::FileToFile {
                assert_ne!(folder.generation(&key("old/1")), generation, "{scene:?}");
            }
            assert_eq!(staged(&folder, &backend), 0, "{scene:?}");
        }
    }
}

/// Where nothing is, nothing is replaced.
#[test]
fn a_free_name_is_created() {
    for backend in [Backend::real(), Backend::sim(), Backend::plain()] {
        let folder = backend.folder();
        put(&folder, "new/a", b"a").unwrap();
        let committed = replace(&folder, "new", "x/y", Kind::Directory).unwrap();
        assert!(committed.created && committed.replaced_bytes == 0);
        assert_eq!(get(&folder, "x/y/a").as_deref(), Ok(&b"a"[..]));
        let missing = replace(&folder, "none", "x", Kind::Directory);
        assert_eq!(missing.err(), Some(StoreError::NotFound));
        assert_eq!(get(&folder, "x/y/a").as_deref(), Ok(&b"a"[..]));
        let absent = Relocation {
            to_condition: Condition::Absent,
            ..relocation("x", "z")
        };
        put(&folder, "z/b", b"b").unwrap();
        let refused = block_on(folder.replace(absent, Kind::Directory, ShownNames::default()));
        assert_eq!(refused.err(), Some(StoreError::PreconditionFailed));
        assert_eq!(get(&folder, "z/b").as_deref(), Ok(&b"b"[..]));
    }
}

/// A file system that cannot exchange names replaces files by files only.
#[test]
fn what_cannot_be_exchanged_stays() {
    let backends = || [Backend::plain(), Backend::real()];
    for (scene, backend) in (SCENES.into_iter()).flat_map(|scene| backends().map(|it| (scene, it)))
    {
        if matches!(backend, Backend::Real(_)) && !backend.lacks(&[Ability::Exchange]) {
            continue;
        }
        let folder = backend.folder();
        scene.put(&folder);
        match scene {
            Scene::FileToFile => assert!(scene.run(&folder).is_ok()),
            _ => {
                assert_eq!(scene.run(&folder).err(), Some(StoreError::Unsupported));
                assert_found(&folder, &before(scene), &format!("{scene:?}"));
            }
        }
        assert_eq!(staged(&folder, &backend), 0, "{scene:?}");
    }
}

#[test]
fn what_is_not_shown_is_not_replaced() {
    for backend in [Backend::real(), Backend::sim()] {
        if backend.lacks(&[Ability::Exchange, Ability::Fifos]) {
            continue;
        }
        let folder = backend.folder();
        put(&folder, "new/a", b"new").unwrap();
        put(&folder, "old/deep/.hidden", b"kept").unwrap();
        put(&folder, "special/a", b"kept").unwrap();
        backend.fifo("special/fifo");
        for (to, kept) in [("old", "old/deep/.hidden"), ("special", "special/a")] {
            let refused = replace(&folder, "new", to, Kind::Directory);
            assert_eq!(refused.err(), Some(StoreError::NotEmpty), "{to}");
            assert_eq!(get(&folder, kept).as_deref(), Ok(&b"kept"[..]));
        }
        let hidden = |to| {
            block_on(folder.replace(relocation("new", to), Kind::Directory, ShownNames::all()))
        };
        assert_eq!(hidden("special").err(), Some(StoreError::NotEmpty));
        assert!(hidden("old").is_ok());
        assert_eq!(get(&folder, "old/a").as_deref(), Ok(&b"new"[..]));
        assert_eq!(get(&folder, "old/deep/.hidden"), Err(StoreError::NotFound));
    }
}

/// One folder with two names, and folders that contain one another by other paths.
#[test]
fn links_do_not_hide_what_a_name_is() {
    for backend in [Backend::real(), Backend::sim()] {
        if backend.lacks(&[Ability::Exchange, Ability::Symlinks]) {
            continue;
        }
        let folder = backend.folder();
        put(&folder, "releases/1/x/y/a", b"a").unwrap();
        put(&folder, "other/b", b"b").unwrap();
        backend.symlink("current", "releases/1");
        backend.symlink("other/deep", "../releases/1/x");
        backend.symlink("to-other", "other");
        let overlap = |from, to| block_on(folder.overlap(&key(from), &key(to)));
        for (from, to, expected) in [
            ("releases/1/x", "current/x", Overlap::Same),
            ("releases/1/x", "current/x/new/deep", Overlap::Beneath),
            ("releases/1/x/y", "current/x", Overlap::Contains),
            ("other/deep/y", "releases/1", Overlap::Contains),
            ("other/deep/y/a", "releases", Overlap::Contains),
            ("releases/1/x/y/a", "other/deep/y/a", Overlap::Same),
            ("other", "to-other", Overlap::Same),
            ("releases/1/x", "other", Overlap::None),
            ("releases/1/x/y/a", "current/x/b", Overlap::None),
        ] {
            assert_eq!(overlap(from, to), Ok(expected), "{from} {to}");
        }
        for (from, to, error) in [
            ("releases/1/x", "current/x", StoreError::Forbidden),
            ("releases/1/x", "current/x/y", StoreError::Forbidden),
            ("current/x/y", "releases/1/x", StoreError::Conflict),
            ("other/deep/y", "releases", StoreError::Conflict),
        ] {
            let refused = replace(&folder, from, to, Kind::Directory);
            assert_eq!(refused.err(), Some(error), "{from} {to}");
        }
        assert_eq!(get(&folder, "current/x/y/a").as_deref(), Ok(&b"a"[..]));
        // Of a link to another folder, the link is replaced.
        assert!(replace(&folder, "releases/1/x/y", "to-other", Kind::Directory).is_ok());
        assert_eq!(get(&folder, "to-other/a").as_deref(), Ok(&b"a"[..]));
        assert_eq!(get(&folder, "other/b").as_deref(), Ok(&b"b"[..]));
        assert_eq!(staged(&folder, &backend), 0);
    }
}

/// At another place, a link that leads out of the folder would lead elsewhere.
#[test]
fn a_folder_with_a_link_out_of_it_is_not_moved() {
    for backend in [Backend::real(), Backend::memory(), Backend::sim()] {
        if backend.lacks(&[Ability::Symlinks]) {
            continue;
        }
        let folder = backend.folder();
        put(&folder, "a/b/c/x", b"x").unwrap();
        put(&folder, "a/y", b"y").unwrap();
        backend.symlink("a/b/c/up", "../../y");
        backend.symlink("a/b/c/absolute", "/etc/passwd");
        let rename = |from, to| block_on(folder.rename(relocation(from, to), Kind::Directory));
        for (from, to) in [("a/b/c", "d"), ("a/b", "a/d")] {
            assert_eq!(rename(from, to).err(), Some(StoreError::LeadsOutside));
            let refused = replace(&folder, from, to, Kind::Directory);
            assert_eq!(refused.err(), Some(StoreError::LeadsOutside));
            assert_eq!(get(&folder, "a/b/c/up").as_deref(), Ok(&b"y"[..]));
        }
        assert!(rename("a", "moved").is_ok(), "the link stays within it");
        assert_eq!(get(&folder, "moved/b/c/up").as_deref(), Ok(&b"y"[..]));
    }
}

/// Any error at any operation leaves everything as it was, or the change is made.
#[test]
fn an_error_at_any_operation_puts_everything_back() {
    for scene in SCENES {
        let count = count_operations(scene, 0);
        for (number, errno) in
            (0..count).flat_map(|n| [EIO, ENOSPC, EACCES, EXDEV, EDQUOT].map(|errno| (n, errno)))
        {
            let at = format!("{scene:?}, operation {number}, errno {errno}");
            let (disk, folder) = prepare(scene, number);
            disk.fail_at(disk.operations() + number, errno);
            let result = scene.run(&folder);
            let expected = match &result {
                Ok(_) => after(scene),
                Err(_) => before(scene),
            };
            assert_found(&folder, &expected, &format!("{at}: {result:?}"));
            if let Err(error) = result {
                let is_reported = match errno {
                    EIO => matches!(error, StoreError::Io(_)),
                    ENOSPC | EDQUOT => matches!(error, StoreError::Full(_)),
                    // An attribute that may not be set.
                    EACCES => matches!(
                        error,
                        StoreError::PermissionDenied(_) | StoreError::NoMetadata
                    ),
                    _ => matches!(
                        error,
                        StoreError::Conflict
                            | StoreError::NotFound
                            | StoreError::OtherFileSystem
                            | StoreError::Io(_)
                    ),
                };
                // What cannot be looked up may be something else.
                assert!(
                    is_reported || error == StoreError::Conflict,
                    "{at}: {error:?}"
                );
                let backend = Backend::Sim(disk.clone());
                assert_eq!(staged(&folder, &backend), 0, "{at}: {error:?}");
            }
            // The next attempt succeeds, and is durable.
            if found(&folder) == before(scene) {
                scene
                    .run(&folder)
                    .unwrap_or_else(|error| panic!("{at}: {error}"));
            }
            disk.power_cut();
            drop(folder);
            disk.restart();
            let folder = open(&disk);
            assert_found(&folder, &after(scene), &at);
            assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0, "{at}");
        }
    }
}

/// If the disk fails for longer, so that nothing can be put back, something whole is there.
#[test]
fn a_disk_that_goes_on_failing_loses_nothing() {
    for scene in SCENES {
        let count = count_operations(scene, 0);
        for (number, failures) in (0..count).flat_map(|n| [(n, 2), (n, 3), (n, 100)]) {
            let at = format!("{scene:?}, operations {number} to {}", number + failures);
            let (disk, folder) = prepare(scene, number);
            for failing in 0..failures {
                disk.fail_at(disk.operations() + number + failing, EIO);
            }
            let result = scene.run(&folder);
            disk.clear_faults();
            let holds = |folder: &Folder| {
                let found = found(folder);
                let at_old = |wanted: Found| wanted.iter().all(|entry| found.contains(entry));
                at_old(scene.target()) || at_old(scene.published())
            };
            assert!(holds(&folder), "{at}: {result:?}");
            drop(folder);
            disk.kill_processes();
            assert!(holds(&open(&disk)), "{at}: {result:?} after a start");
        }
    }
}

#[test]
fn a_power_cut_at_any_operation_leaves_the_old_or_the_new() {
    let mut cuts = 0;
    for scene in SCENES {
        for seed in 0..6 {
            let count = count_operations(scene, seed);
            for number in 0..=count {
                for cut in [Cut::Before, Cut::During, Cut::After] {
                    let at = format!("{scene:?}, seed {seed}, operation {number}, {cut:?}");
                    let (disk, folder) = prepare(scene, seed);
                    disk.power_cut_at(disk.operations() + number, cut);
                    let result = scene.run(&folder);
                    disk.power_cut();
                    drop(folder);
                    disk.restart();
                    let folder = open(&disk);
                    let found = found(&folder);
                    match result {
                        Ok(_) => assert!(found == after(scene), "{at}: lost"),
                        Err(_) => assert!(
                            found == before(scene) || found == after(scene),
                            "{at}: {:?}",
                            names_of(&found)
                        ),
                    }
                    let backend = Backend::Sim(disk.clone());
                    assert_eq!(staged(&folder, &backend), 0, "{at}: not removed");
                    cuts += 1;
                }
            }
        }
    }
    assert!(cuts > 2000, "{cuts}");
}

/// As a power cut, but what was written stays: `kill -9`.
#[test]
fn the_end_of_the_process_at_any_operation_leaves_the_old_or_the_new() {
    for scene in SCENES {
        for number in 0..count_operations(scene, 0) {
            let (disk, folder) = prepare(scene, number);
            // No operation after this one has an effect, as after the end of the process.
            for later in number..number + 200 {
                disk.fail_at(disk.operations() + later, EIO);
            }
            let _ = scene.run(&folder);
            disk.clear_faults();
            disk.kill_processes();
            drop(folder);
            let folder = open(&disk);
            let found = found(&folder);
            assert!(
                found == before(scene) || found == after(scene),
                "{scene:?}, operation {number}: {:?}",
                names_of(&found)
            );
            assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0);
        }
    }
}

/// A request that ends early, as at the end of a worker: each step may be the last one.
#[test]
fn a_dropped_change_leaves_the_old_or_the_new() {
    for scene in SCENES {
        let mut is_complete = false;
        for polls in 0..100 {
            let backend = Backend::real();
            let folder = backend.folder();
            scene.put(&folder);
            let wait = || (0..5).for_each(|_| block_on(folder.pool().run(|| ())).unwrap());
            let mut change = scene.change(&folder);
            for _ in 0..polls {
                let mut cx = Context::from_waker(Waker::noop());
                is_complete = change.as_mut().poll(&mut cx).is_ready();
                if is_complete {
                    break;
                }
                wait(); // The job that this poll has begun.
            }
            drop(change);
            wait();
            let at = format!("{scene:?}, {polls} polls");
            assert_eq!(staged(&folder, &backend), 0, "{at}");
            let found = found(&folder);
            assert!(
                found == before(scene) || found == after(scene),
                "{at}: {:?}",
                names_of(&found)
            );
            if is_complete {
                break;
            }
        }
        assert!(is_complete, "{scene:?}");
    }
}
