//! A commit of a kept upload that fails, at every operation on the simulated disk: no byte that was
//! kept is lost. The object is there, or the upload continues.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::{Descriptors, FileUse};
use onrush_rt::fs::sim::SimFs;
use onrush_rt::fs::{FileKind, OpenHow};
use onrush_store::*;

const BYTES: usize = 20_000;
const OLD: &[u8] = b"the old object";
const PROPERTIES: &[u8] = b"properties";
const ERRORS: [i32; 4] = [libc::EIO, libc::ENOSPC, libc::ENOMEM, libc::EMFILE];

/// What a commit begins with.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Whether it replaces an object, which has properties that stay.
    replaces: bool,
    /// Whether the file system has only plain renames.
    is_plain: bool,
    /// The bytes that were kept. The others are written before the commit.
    kept_bytes: usize,
}

const CASES: [Case; 6] = [
    case(true, false, BYTES),
    case(true, false, 17_001),
    case(false, false, BYTES),
    case(false, false, 17_001),
    case(true, true, BYTES),
    case(false, true, BYTES),
];

const fn case(replaces: bool, is_plain: bool, kept_bytes: usize) -> Case {
    Case {
        replaces,
        is_plain,
        kept_bytes,
    }
}

fn open(disk: &SimFs, budget: &Descriptors) -> Folder {
    let options = FolderOptions {
        keep_properties: true,
        descriptors: budget.clone(),
        ..FolderOptions::default()
    };
    Folder::on(disk.root().unwrap(), BlockingPool::inline(), options).unwrap()
}

impl Case {
    /// A disk, a folder on it, an upload that is ready to be committed, and what was kept of it.
    fn begin(
        self,
        seed: u64,
        budget: &Descriptors,
    ) -> (SimFs, Folder, Box<dyn Upload>, PartialUpload) {
        let disk = SimFs::new(seed);
        disk.set_plain_renames(self.is_plain);
        let folder = open(&disk, budget);
        put(&folder, "folder/other", b"").unwrap();
        let at = key("folder/object");
        if self.replaces {
            put(&folder, "folder/object", OLD).unwrap();
            block_on(folder.replace_properties(&at, b"", PROPERTIES)).unwrap();
        }
        let (upload, kept) = block_on(async {
            let staged = folder.stage(&at, Condition::None, Some(BYTES as u64));
            let mut upload = staged.await.unwrap();
            upload.set_metadata(metadata_of(&body(BYTES))).unwrap();
            let (first, rest) = (
                &body(BYTES)[..self.kept_bytes],
                &body(BYTES)[self.kept_bytes..],
            );
            upload.write(first.to_vec()).await.unwrap();
            let kept = upload.keep().await.unwrap();
            upload.write(rest.to_vec()).await.unwrap();
            (upload, kept)
        });
        (disk, folder, upload, kept)
    }

    /// The number of operations of a commit that succeeds.
    fn operations(self) -> u64 {
        let (disk, _folder, upload, _) = self.begin(1, &Descriptors::new(1000));
        let before = disk.operations();
        block_on(upload.commit()).unwrap();
        disk.operations() - before
    }

    /// After a failure. Returns whether the object was published already.
    fn assert_not_lost(self, folder: &Folder, kept: &PartialUpload, at: &str) -> bool {
        let found = get(folder, "folder/object");
        let is_published = found == Ok(body(BYTES));
        let is_old = match self.replaces {
            true => found == Ok(OLD.to_vec()),
            false => found == Err(StoreError::NotFound),
        };
        assert!(is_published || is_old, "{at}: torn");
        let published = block_on(async {
            let place = key("folder/object");
            let mut upload = folder.resume(&place, Condition::None, kept).await?;
            upload.set_metadata(metadata_of(&body(BYTES)))?;
            let rest = &body(BYTES)[upload.written_bytes() as usize..];
            upload.write(rest.to_vec()).await?;
            upload.commit().await
        });
        match published {
            Err(StoreError::NotFound) if is_published => {}
            Err(error) => panic!("{at}: the upload does not continue: {error}"),
            Ok(_) => assert!(!is_published, "{at}: there twice"),
        }
        assert!(get(folder, "folder/object") == Ok(body(BYTES)), "{at}");
        let properties = block_on(folder.properties(&key("folder/object"))).unwrap();
        let expected = if self.replaces { PROPERTIES } else { b"" };
        assert_eq!(properties, expected, "{at}");
        is_published
    }
}

#[test]
fn kept_bytes_survive_an_error_at_any_operation_of_the_commit() {
    for case in CASES {
        let count = case.operations();
        assert!(count >= 4, "{count}");
        let mut failures = 0;
        let mut fail = |number, errno, power_cut: Option<u64>| {
            let at = format!("{case:?}, {number}, errno {errno}, power cut: {power_cut:?}");
            let budget = Descriptors::new(1000);
            let (disk, mut folder, upload, kept) = case.begin(power_cut.unwrap_or(1), &budget);
            disk.fail_at(disk.operations() + number, errno);
            if block_on(upload.commit()).is_ok() {
                assert!(get(&folder, "folder/object") == Ok(body(BYTES)), "{at}");
                return; // Removing the old object has failed.
            }
            failures += 1;
            if power_cut.is_some() {
                disk.power_cut();
                disk.restart();
                folder = open(&disk, &budget);
            }
            let is_published = case.assert_not_lost(&folder, &kept, &at);
            // A plain rename cannot be undone, and a power cut may come before the undoing.
            assert!(
                !is_published || case.is_plain || power_cut.is_some(),
                "{at}"
            );
            assert_eq!(staged(&folder, &Backend::Sim(disk)), 0, "{at}");
        };
        for number in 0..count {
            ERRORS.iter().for_each(|&errno| fail(number, errno, None));
            // Without an exchange, the object stays, and a power cut may take both of its names.
            if !case.is_plain {
                (1..8).for_each(|seed| fail(number, libc::EIO, Some(seed)));
            }
        }
        assert!(failures as u64 >= count, "{case:?}: {failures}");
    }
}

/// The properties of the old object need a descriptor.
#[test]
fn kept_bytes_survive_a_commit_without_descriptors() {
    let budget = Descriptors::new(160);
    let case = CASES[0];
    let (_disk, folder, upload, kept) = case.begin(1, &budget);
    let mut all = Vec::new();
    while let Some(permit) = budget.open_file(FileUse::Brief) {
        all.push(permit);
    }
    let failed = block_on(upload.commit());
    assert_eq!(failed.err(), Some(StoreError::Busy));
    drop(all);
    assert!(!case.assert_not_lost(&folder, &kept, "no descriptors"));
}

/// What an attempt has set does not become part of the object that a later one makes.
#[test]
fn a_later_commit_has_only_its_own_properties_and_metadata() {
    let case = CASES[0];
    let count = case.operations();
    let mut failures = 0;
    for number in 0..count {
        let (disk, folder, upload, kept) = case.begin(1, &Descriptors::new(1000));
        disk.fail_at(disk.operations() + number, libc::ENOMEM);
        if block_on(upload.commit()).is_ok() {
            continue;
        }
        failures += 1;
        delete(&folder, "folder/object").unwrap();
        block_on(async {
            let at = key("folder/object");
            let resumed = folder.resume(&at, Condition::Absent, &kept).await;
            resumed.unwrap().commit().await.unwrap();
            assert_eq!(folder.properties(&at).await, Ok(Vec::new()), "{number}");
        });
        let (content, metadata) = get_both(&folder, "folder/object").unwrap();
        assert!(content == body(BYTES) && metadata.is_empty(), "{number}");
    }
    assert!(failures >= 4, "{failures}");
}

/// A refusal does not remove the bytes either: the caller decides that it is final.
#[test]
fn a_refused_commit_leaves_the_kept_bytes_to_the_caller() {
    for backend in [Backend::real(), Backend::memory(), Backend::sim()] {
        let folder = backend.folder();
        put(&folder, "object", OLD).unwrap();
        let at = key("object");
        let uploads = || entries(&backend.root().open_dir(b".onrush/uploads").unwrap()).len();
        block_on(async {
            let staged = folder
                .stage(&at, Condition::Absent, Some(BYTES as u64))
                .await;
            let mut upload = staged.unwrap();
            upload.write(body(BYTES)).await.unwrap();
            let kept = upload.keep().await.unwrap();
            let refused = upload.commit().await;
            assert_eq!(refused.err(), Some(StoreError::PreconditionFailed));
            assert_eq!(uploads(), 1);
            let resumed = folder.resume(&at, Condition::Absent, &kept).await;
            assert_eq!(resumed.unwrap().written_bytes(), BYTES as u64);
            folder.discard(&kept).await.unwrap();
            assert_eq!(uploads(), 0);
        });
    }
}

/// The contents of the files in a folder of the store.
fn contents(disk: &SimFs, path: &[u8]) -> Vec<Vec<u8>> {
    let Ok(dir) = disk.root().unwrap().open_dir(path) else {
        return Vec::new();
    };
    let read = |name: &[u8]| {
        let (mut content, file) = (
            Vec::with_capacity(BYTES),
            dir.open(name, OpenHow::READ).unwrap(),
        );
        file.read_to_vec(&mut content, BYTES, 0).unwrap();
        content
    };
    let files = entries(&dir).into_iter();
    let files = files.filter(|(_, kind)| *kind == Some(FileKind::File));
    files.map(|(name, _)| read(&name)).collect()
}

/// Replaces the old object, while all operations from one on fail, or only some of them. Exchanging
/// the objects back may fail as well: the old object has the name of the staged file then.
#[test]
fn the_old_object_survives_a_commit_that_cannot_be_undone() {
    let (mut displaced, mut left) = (0, 0);
    for is_kept in [true, false] {
        let count = CASES[0].operations();
        for (number, failures) in (0..count).flat_map(|n| (1..12).map(move |m| (n, m))) {
            let at = format!("kept: {is_kept}, {failures} failures from {number}");
            let budget = Descriptors::new(1000);
            let (disk, folder, mut upload, kept) = CASES[0].begin(1, &budget);
            if !is_kept {
                upload = block_on(async {
                    let object = key("folder/object");
                    let staged = folder.stage(&object, Condition::None, Some(BYTES as u64));
                    let mut upload = staged.await.unwrap();
                    upload.set_metadata(metadata_of(&body(BYTES))).unwrap();
                    upload.write(body(BYTES)).await.unwrap();
                    upload
                });
            }
            let from = disk.operations() + number;
            (from..from + failures).for_each(|operation| disk.fail_at(operation, libc::EIO));
            let committed = block_on(upload.commit());
            disk.clear_faults();
            let found = get(&folder, "folder/object");
            assert!(
                found == Ok(OLD.to_vec()) || found == Ok(body(BYTES)),
                "{at}: torn"
            );
            if committed.is_ok() {
                assert!(found == Ok(body(BYTES)), "{at}");
                continue;
            }
            // The caller takes the failure for a final one.
            block_on(folder.discard(&kept)).unwrap();
            if found == Ok(OLD.to_vec()) {
                continue;
            }
            if contents(&disk, b".onrush/displaced") == [OLD] {
                displaced += 1;
                drop(folder);
                open(&disk, &budget);
                assert_eq!(contents(&disk, b".onrush/displaced"), [OLD], "{at}");
                continue;
            }
            let mut all = contents(&disk, b".onrush/uploads");
            for (name, _) in entries(&disk.root().unwrap().open_dir(b".onrush/staging").unwrap()) {
                all.extend(contents(&disk, &[&b".onrush/staging/"[..], &name].concat()));
            }
            assert_eq!(all, [OLD], "{at}: the old object is lost");
            left += 1;
        }
    }
    assert!(displaced > 0 && left > 0, "{displaced} {left}");
}
