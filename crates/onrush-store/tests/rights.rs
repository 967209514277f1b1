//! Owner, group, mode and access control lists of objects, and what a file system refuses to set.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_rt::fs::{Dir, OpenHow};
use onrush_store::*;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

const LARGE: usize = 50_000;

fn on_kernel(test: impl Fn(&Backend, &Folder, &Path)) {
    for backend in [Backend::real(), Backend::memory()] {
        for durability in [Durability::Full, Durability::None] {
            let folder = backend.folder_with(FolderOptions {
                durability,
                ..FolderOptions::default()
            });
            let path = backend.path(b"d").unwrap();
            fs::create_dir(&path).unwrap();
            test(&backend, &folder, &path);
            drop(folder);
            fs::remove_dir_all(&path).unwrap();
        }
    }
}

/// Puts of all kinds: small, large, and one that is continued.
fn put_all(folder: &Folder, names: [&str; 3]) {
    put(folder, names[0], &body(3)).unwrap();
    put(folder, names[1], &body(LARGE)).unwrap();
    block_on(async {
        let at = key(names[2]);
        let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
        upload.write(body(LARGE)).await.unwrap();
        let kept = upload.keep().await.unwrap();
        drop(upload);
        let upload = folder.resume(&at, Condition::None, &kept).await.unwrap();
        upload.commit().await.unwrap();
    });
}

const NAMES: [&str; 3] = ["d/small", "d/large", "d/continued"];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_replaced_object_keeps_its_mode() {
    if temp_lacks(&[Ability::Modes]) {
        return;
    }
    on_kernel(|backend, folder, path| {
        for bits in [0o600, 0o640, 0o4755, 0o444] {
            for name in NAMES {
                let at = backend.path(name.as_bytes()).unwrap();
                fs::write(&at, "old").unwrap();
                fs::set_permissions(&at, Permissions::from_mode(bits)).unwrap();
            }
            put_all(folder, NAMES);
            for name in NAMES {
                let at = backend.path(name.as_bytes()).unwrap();
                assert!(fs::metadata(&at).unwrap().len() != 3 || name == "d/small");
                assert_eq!(mode(&at), bits & 0o777, "{name}");
            }
            // Again, by a process that knows the object.
            put_all(folder, NAMES);
            for entry in fs::read_dir(path).unwrap() {
                assert_eq!(mode(&entry.unwrap().path()), bits & 0o777);
            }
            NAMES
                .iter()
                .for_each(|name| assert!(delete(folder, name).is_ok()));
        }
    });
}

#[test]
fn a_new_object_has_the_mode_of_the_umask() {
    if temp_lacks(&[Ability::Modes]) {
        return;
    }
    on_kernel(|backend, folder, path| {
        let other = path.join("other");
        fs::write(&other, "").unwrap();
        put_all(folder, NAMES);
        for name in NAMES {
            let at = backend.path(name.as_bytes()).unwrap();
            assert_eq!(mode(&at), mode(&other), "{name}");
        }
    });
}

#[test]
fn owner_and_group_are_those_of_the_object_or_the_folder() {
    if temp_lacks(&[Ability::Owners]) {
        return;
    }
    on_kernel(|backend, folder, path| {
        let all = |expected: (u32, u32, u32)| {
            for name in NAMES {
                let at = backend.path(name.as_bytes()).unwrap();
                let found = fs::metadata(at).unwrap();
                let found = (found.uid(), found.gid(), found.mode() & 0o777);
                assert_eq!(found, expected, "{name}");
            }
        };
        let own = fs::metadata(path).unwrap();
        chown(path, None, Some(2345)).unwrap();
        put_all(folder, NAMES);
        let usual = mode(&backend.path(NAMES[0].as_bytes()).unwrap());
        all((own.uid(), own.gid(), usual));
        NAMES
            .iter()
            .for_each(|name| assert!(delete(folder, name).is_ok()));
        fs::set_permissions(path, Permissions::from_mode(0o2775)).unwrap();
        put_all(folder, NAMES);
        all((own.uid(), 2345, usual));
        put(folder, "d/new/folder/object", b"x").unwrap();
        let below = fs::metadata(path.join("new/folder/object")).unwrap();
        assert_eq!(below.gid(), 2345);
        for name in NAMES {
            let at = backend.path(name.as_bytes()).unwrap();
            chown(&at, Some(1234), Some(3456)).unwrap();
            fs::set_permissions(&at, Permissions::from_mode(0o620)).unwrap();
        }
        put_all(folder, NAMES);
        all((1234, 3456, 0o620));
    });
}

/// A copy that replaces a folder has the rights of that, and what is in it inherits from it; one
/// that replaces something else has those of something new.
#[test]
fn a_copy_that_replaces_a_folder_keeps_its_rights() {
    let wanted = [Ability::Owners, Ability::AccessLists, Ability::Exchange];
    if temp_lacks(&wanted) {
        return;
    }
    on_kernel(|backend, folder, path| {
        put(folder, "source/x", b"new").unwrap();
        for (replaced, is_folder) in [("d/folder", true), ("d/file", false)] {
            let at = backend.path(replaced.as_bytes()).unwrap();
            let with_rights = match is_folder {
                true => {
                    fs::create_dir(&at).unwrap();
                    fs::write(at.join("old"), "old").unwrap();
                    &at
                }
                false => {
                    fs::write(&at, "old").unwrap();
                    path
                }
            };
            chown(with_rights, None, Some(2345)).unwrap();
            fs::set_permissions(with_rights, Permissions::from_mode(0o2750)).unwrap();
            let dir = Dir::open_root(with_rights).unwrap();
            let open = dir.open(b".", OpenHow::READ).unwrap();
            open.set_default_access_list(&default_list()).unwrap();
            let before = mode(with_rights);
            block_on(async {
                let (from, to) = (key("source"), key(replaced));
                let staged = folder.stage_copy(&from, &to).await.unwrap();
                let copy = staged.key().clone();
                folder.create_folder(&copy).await.unwrap();
                folder.take_rights(&staged, &to).await.unwrap();
                let inside =
                    |name: &str| Key::parse(&[copy.as_bytes(), name.as_bytes()].concat()).unwrap();
                folder.create_folder(&inside("/deep")).await.unwrap();
                let file = relocation("source/x", inside("/x").as_bytes());
                folder.copy(file).await.unwrap();
                let shown = ShownNames::default();
                let publish = folder.replace(
                    relocation(copy.as_bytes(), replaced),
                    Kind::Directory,
                    shown,
                );
                publish.await.unwrap();
            });
            let group = |path: &Path| fs::metadata(path).unwrap().gid();
            match is_folder {
                true => assert_eq!(mode(&at), before),
                false => assert_eq!(mode(&at) & 0o2000, 0o2000),
            }
            assert_eq!(mode(&at.join("deep")) & 0o2000, 0o2000);
            for path in [&at, &at.join("deep"), &at.join("x")] {
                assert_eq!(group(path), 2345, "{path:?}");
                assert!(access_list(path).is_some() || path == &at, "{path:?}");
            }
            assert!(!at.join("old").exists());
        }
    });
}

/// The list of a folder for what is created in it, with an entry for the user 1234.
pub(crate) fn default_list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, 7, 1234),
        (0x04, 5, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&rights.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

fn access_list(path: &Path) -> Option<Vec<u8>> {
    let dir = Dir::open_root(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap().as_encoded_bytes();
    dir.open(name, OpenHow::READ)
        .unwrap()
        .access_list()
        .unwrap()
}

/// `getxattrat(2)`; libc lacks it.
const SYS_GETXATTRAT: libc::c_long = 464;

#[test]
fn access_control_lists_are_those_of_the_object_or_the_folder() {
    check_access_control_lists();
}

/// As before Linux 6.13, and in the sandbox of an older systemd.
#[test]
fn access_control_lists_are_the_same_where_a_name_has_no_attributes() {
    let name = "access_control_lists_are_the_same_where_a_name_has_no_attributes";
    if ::testing::child::elsewhere(module_path!(), name) {
        return;
    }
    ::testing::seccomp::refuse(&[(SYS_GETXATTRAT, libc::EPERM)]).expect("a filter");
    check_access_control_lists();
}

fn check_access_control_lists() {
    on_kernel(|backend, folder, path| {
        let above = Dir::open_root(path).unwrap();
        if backend.lacks(&[Ability::AccessLists]) {
            return;
        }
        assert!(above.keeps_access_lists());
        let as_file = above.open(b".", OpenHow::READ).unwrap();
        let list = c"system.posix_acl_default";
        as_file.set_attribute(list, &default_list()).unwrap();
        // The kernel decides about a file that another program creates.
        let other = path.join("other");
        fs::write(&other, "").unwrap();
        let expected = access_list(&other);
        assert!(expected.is_some());
        put_all(folder, NAMES);
        for name in NAMES {
            let at = backend.path(name.as_bytes()).unwrap();
            assert_eq!(access_list(&at), expected, "{name}");
            assert_eq!(mode(&at), mode(&other), "{name}");
        }
        // Those of a folder that is made, and of a replaced object.
        put(folder, "d/new/object", b"x").unwrap();
        assert_eq!(access_list(&path.join("new/object")), expected);
        fs::create_dir(path.join("plain")).unwrap();
        let plain = Dir::open_root(&path.join("plain")).unwrap();
        plain.set_private(0o755).unwrap();
        put(folder, "d/plain/object", b"x").unwrap();
        assert_eq!(access_list(&path.join("plain/object")), None);
        let file = plain.open(b"object", OpenHow::READ).unwrap();
        file.set_access_list(&expected.clone().unwrap()).unwrap();
        put(folder, "d/plain/object", b"another").unwrap();
        assert_eq!(access_list(&path.join("plain/object")), expected);
    });
}

/// The root folder passes nothing on to the objects of other folders, though staged files are
/// beneath it.
#[test]
fn the_root_folder_gives_its_list_to_its_own_objects_only() {
    for backend in [Backend::real(), Backend::memory()] {
        let root = backend.path(b"").unwrap();
        let as_file = Dir::open_root(&root).unwrap();
        if backend.lacks(&[Ability::AccessLists]) {
            continue;
        }
        assert!(as_file.keeps_access_lists());
        fs::create_dir(root.join("d")).unwrap();
        let as_file = as_file.open(b".", OpenHow::READ).unwrap();
        let list = c"system.posix_acl_default";
        as_file.set_attribute(list, &default_list()).unwrap();
        let folder = backend.folder();
        put_all(&folder, NAMES);
        for name in NAMES {
            assert_eq!(access_list(&root.join(name)), None, "{name}");
        }
        put(&folder, "object", b"x").unwrap();
        assert!(access_list(&root.join("object")).is_some());
    }
}

fn on_sim(durability: Durability) -> (SimFs, Folder) {
    let disk = SimFs::new(1);
    let options = FolderOptions {
        durability,
        ..FolderOptions::default()
    };
    let folder = Folder::on(disk.root().unwrap(), BlockingPool::inline(), options);
    (disk, folder.unwrap())
}

/// A mount that shows another owner refuses to set times, modes and owners (bindfs, CIFS `uid=`).
#[test]
fn a_mount_that_shows_another_owner_is_written() {
    for durability in [Durability::Full, Durability::None] {
        let (disk, folder) = on_sim(durability);
        disk.set_foreign_owner(true);
        for len in [3, LARGE, 5, LARGE + 1] {
            let at = ["d/one", "d/two", "d/three"];
            for at in at {
                put(&folder, at, &body(len)).unwrap();
                assert!(get(&folder, at).unwrap() == body(len));
            }
        }
        put_all(&folder, NAMES);
        for name in NAMES {
            block_on(folder.copy(relocation(name, "copy"))).unwrap();
            assert_eq!(get(&folder, "copy"), get(&folder, name));
        }
    }
}

/// Whether and how an attribute cannot be set, every way to write has the same result.
#[test]
fn attributes_that_cannot_be_set_have_the_same_effect_for_all_writes() {
    let cases = [
        (libc::EOPNOTSUPP, Some(StoreError::NoMetadata)),
        (libc::EPERM, Some(StoreError::NoMetadata)),
        (libc::EACCES, Some(StoreError::NoMetadata)),
        (libc::E2BIG, Some(StoreError::TooLarge)),
        (libc::ERANGE, Some(StoreError::TooLarge)),
        (libc::EROFS, Some(StoreError::ReadOnly)),
    ];
    for (errno, refused) in cases {
        for way in ["small", "large", "kept"] {
            for has_metadata in [false, true] {
                let (disk, folder) = on_sim(Durability::Full);
                disk.fail_attributes(Some(errno));
                let written = block_on(async {
                    let size = (way == "large").then_some(LARGE as u64);
                    let at = key("d/object");
                    let mut upload = folder.stage(&at, Condition::None, size).await?;
                    let len = if way == "small" { 3 } else { LARGE };
                    upload.write(body(len)).await?;
                    if way == "kept" {
                        let kept = upload.keep().await?;
                        drop(upload);
                        upload = folder.resume(&at, Condition::None, &kept).await?;
                    }
                    if has_metadata {
                        upload.set_metadata(b"type: x\n".to_vec())?;
                    }
                    upload.commit().await
                });
                let expected = match has_metadata || errno == libc::EROFS {
                    true => refused,
                    false => None,
                };
                assert_eq!(written.err(), expected, "{errno} {way} {has_metadata}");
                assert_eq!(get(&folder, "d/object").is_ok(), expected.is_none());
            }
        }
    }
}

/// Another program creates the object at any moment of a put, for its owner only. If the put has
/// replaced it, a power cut does not give the new one more rights.
#[test]
fn rights_that_a_put_took_survive_a_power_cut() {
    const PRIVATE: u32 = 0o600;
    let prepare = |seed| {
        let disk = SimFs::new(seed);
        let folder = Backend::Sim(disk.clone()).folder();
        (disk, folder)
    };
    let mode = |disk: &SimFs| {
        let found = disk.root().unwrap().metadata(b"a").unwrap();
        found.mode & 0o777
    };
    for len in [3, LARGE] {
        for seed in 0..8 {
            let (disk, folder) = prepare(seed);
            let begin = disk.operations();
            put(&folder, "a", &body(len)).unwrap();
            let usual = mode(&disk);
            assert_ne!(usual, PRIVATE);
            let mut replaced = 0;
            for number in begin..disk.operations() {
                let at = format!("{len} bytes, seed {seed}, operation {number}");
                let (disk, folder) = prepare(seed);
                let root = disk.root().unwrap();
                disk.interrupt_at(number, move || {
                    if let Ok(foreign) = root.open(b"a", OpenHow::create_new(PRIVATE)) {
                        foreign.write_all_at(b"foreign", 0).unwrap();
                        foreign.sync().unwrap();
                        root.sync().unwrap();
                    }
                });
                let committed = put(&folder, "a", &body(len)).unwrap();
                disk.power_cut();
                drop(folder);
                disk.restart();
                let expected = match committed.created {
                    true => usual,
                    false => PRIVATE,
                };
                assert_eq!(mode(&disk), expected, "{at}");
                let folder = Backend::Sim(disk).folder();
                assert!(get(&folder, "a").unwrap() == body(len), "{at}");
                replaced += u32::from(!committed.created);
            }
            assert!(replaced > 2, "{len} bytes: {replaced}");
        }
    }
}
