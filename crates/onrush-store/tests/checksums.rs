//! Checksums of objects: every way to store one records it, damage is found, and what other
//! programs do is distinguished from damage.

use crate::common::*;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_rt::fs::{Create, OpenHow};
use onrush_store::*;
use std::ops::ControlFlow;

on_all! {
    every_way_to_store_an_object_records_its_checksum
    every_flipped_bit_is_found
    changes_of_other_programs_are_no_damage
}

const WRITE: OpenHow = OpenHow {
    read: true,
    write: true,
    create: Create::No,
    mode: 0,
};

fn finding(backend: &Backend, path: &str) -> Finding {
    Scrub::new(backend.root()).verify(path.as_bytes(), &mut |_| {})
}

fn all(backend: &Backend) -> Vec<(String, Finding)> {
    let scrub = Scrub::new(backend.root());
    let mut found = Vec::new();
    scrub.files(&mut |path, read| {
        read.unwrap();
        let name = String::from_utf8(path.to_vec()).unwrap();
        found.push((name, scrub.verify(path, &mut |_| {})));
        ControlFlow::Continue(())
    });
    found
}

/// Without extended attributes (tmpfs of an old kernel) there is nothing to test.
fn has_attributes(folder: &Folder) -> bool {
    folder.keeps_metadata()
}

fn every_way_to_store_an_object_records_its_checksum(backend: &Backend) {
    let folder = backend.folder();
    if !has_attributes(&folder) {
        return;
    }
    put(&folder, "empty", b"").unwrap();
    put(&folder, "d/small", &body(5)).unwrap();
    put(&folder, "d/large", &body(300_000)).unwrap();
    put(&folder, "d/small", &body(6)).unwrap();
    block_on(async {
        // In pieces, and kept between them.
        let mut upload = folder
            .stage(&key("kept"), Condition::None, None)
            .await
            .unwrap();
        upload.write(body(100)).await.unwrap();
        let first = upload.keep().await.unwrap();
        upload.write(body(30_000)).await.unwrap();
        let second = upload.keep().await.unwrap();
        upload.write(body(7)).await.unwrap();
        drop(upload);
        assert_ne!(first, second);
        let mut upload = folder
            .resume(&key("kept"), Condition::None, &second)
            .await
            .unwrap();
        upload.write(body(20_000)).await.unwrap();
        upload.commit().await.unwrap();
        // In parts, the last one first.
        let at = key("parts");
        let mut upload = folder.stage(&at, Condition::None, None).await.unwrap();
        let mut parts = upload.keep().await.unwrap();
        drop(upload);
        let content = body(600_000);
        for range in [400_000..600_000, 0..400_000] {
            let (position, part) = (range.start as u64, content[range].to_vec());
            folder.write_partial(&parts, position, part).await.unwrap();
        }
        folder.sync_partial(&parts).await.unwrap();
        parts.bytes = 600_000;
        let upload = folder.resume(&at, Condition::None, &parts).await.unwrap();
        upload.commit().await.unwrap();
        folder.copy(relocation("d/large", "copy")).await.unwrap();
        folder
            .rename(relocation("kept", "d/renamed"), Kind::File)
            .await
            .unwrap();
    });
    let found = all(backend);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["copy", "empty", "parts", "d/large", "d/renamed", "d/small"]
    );
    assert!(
        found.iter().all(|(_, finding)| *finding == Finding::Intact),
        "{found:?}"
    );
}

fn every_flipped_bit_is_found(backend: &Backend) {
    let folder = backend.folder();
    if !has_attributes(&folder) {
        return;
    }
    let content = body(3000);
    put(&folder, "a", &content).unwrap();
    let file = backend.root().open(b"a", WRITE).unwrap();
    let modified_ns = file.metadata().unwrap().modified_ns;
    for (at, bit) in (0..3000)
        .step_by(37)
        .flat_map(|at| (0..8).map(move |bit| (at, bit)))
    {
        for damaged in [true, false] {
            let byte = content[at] ^ (u8::from(damaged) << bit);
            file.write_all_at(&[byte], at as u64).unwrap();
            file.set_modified(modified_ns).unwrap();
            let found = finding(backend, "a");
            assert_eq!(
                matches!(found, Finding::Damaged(..)),
                damaged,
                "{at} {bit}: {found:?}"
            );
        }
    }
    // The copy of a damaged object is damaged.
    file.write_all_at(&[!content[9]], 9).unwrap();
    file.set_modified(modified_ns).unwrap();
    block_on(folder.copy(relocation("a", "b"))).unwrap();
    assert!(matches!(finding(backend, "b"), Finding::Damaged(..)));
}

fn changes_of_other_programs_are_no_damage(backend: &Backend) {
    let folder = backend.folder();
    if !has_attributes(&folder) {
        return;
    }
    put(&folder, "a", b"content").unwrap();
    let root = backend.root();
    let file = root.open(b"a", WRITE).unwrap();
    file.write_all_at(b"X", 0).unwrap();
    assert_eq!(finding(backend, "a"), Finding::Changed);
    put(&folder, "a", b"content").unwrap();
    assert_eq!(finding(backend, "a"), Finding::Intact);
    let file = root.open(b"a", WRITE).unwrap();
    file.set_len(3).unwrap();
    assert_eq!(finding(backend, "a"), Finding::Changed);
    root.open(b"other", OpenHow::create_new(0o644)).unwrap();
    assert_eq!(finding(backend, "other"), Finding::NoChecksum);
    assert_eq!(finding(backend, "missing"), Finding::Gone);
    root.create_dir(b"d", 0o755).unwrap();
    assert_eq!(finding(backend, "d"), Finding::Gone);
    // A copy of an object that another program has changed has no checksum.
    block_on(folder.copy(relocation("a", "copy"))).unwrap();
    assert_eq!(finding(backend, "copy"), Finding::NoChecksum);
    let options = FolderOptions {
        checksums: false,
        ..FolderOptions::default()
    };
    put(&backend.folder_with(options), "off", b"x").unwrap();
    assert_eq!(finding(backend, "off"), Finding::NoChecksum);
}

/// A power cut leaves no object whose checksum is wrong or belongs to other bytes.
#[test]
fn power_cut_leaves_content_with_its_checksum() {
    for len in [3000, 40_000] {
        let disk = SimFs::new(0);
        let folder = Backend::Sim(disk.clone()).folder();
        let before = disk.operations();
        put(&folder, "a", &body(len)).unwrap();
        let count = disk.operations() - before;
        for (number, seed) in (0..=count).flat_map(|number| [(number, 1), (number, 2), (number, 3)])
        {
            let backend = Backend::Sim(SimFs::new(seed));
            let Backend::Sim(disk) = &backend else {
                unreachable!()
            };
            let folder = backend.folder();
            put(&folder, "a", b"old").unwrap();
            disk.power_cut_at(disk.operations() + number, Cut::During);
            let _ = put(&folder, "a", &body(len));
            disk.power_cut();
            disk.restart();
            assert_eq!(
                finding(&backend, "a"),
                Finding::Intact,
                "{len}, {number}, {seed}"
            );
        }
    }
}

/// A disk that cannot be read is reported, and a stop is obeyed.
#[test]
fn what_cannot_be_read_is_named() {
    let backend = Backend::sim();
    let Backend::Sim(disk) = &backend else {
        unreachable!()
    };
    let folder = backend.folder();
    put(&folder, "a", b"x").unwrap();
    put(&folder, "d/b", b"x").unwrap();
    let scrub = Scrub::new(backend.root());
    // Open, properties, attribute, content.
    for number in 0..4 {
        disk.fail_at(disk.operations() + number, 5);
        let found = scrub.verify(b"a", &mut |_| {});
        assert!(
            matches!(found, Finding::Unreadable(_)),
            "{number}: {found:?}"
        );
    }
    assert_eq!(scrub.verify(b"a", &mut |_| {}), Finding::Intact);
    let mut seen = Vec::new();
    scrub.files(&mut |path, read| {
        seen.push((path.to_vec(), read.is_ok()));
        // The next operation opens the folder.
        disk.fail_at(disk.operations(), 5);
        ControlFlow::Continue(())
    });
    assert_eq!(seen, [(b"a".to_vec(), true), (b"d".to_vec(), false)]);
    disk.clear_faults();
    let mut seen = 0;
    scrub.files(&mut |_, _| {
        seen += 1;
        ControlFlow::Break(())
    });
    assert_eq!(seen, 1);
}
