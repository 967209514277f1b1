//! What every store does alike. Each implementation of [`Store`] runs these checks in its tests.

use crate::error::StoreError;
use crate::key::Key;
use crate::meta::Kind;
use crate::store::{Condition, Cursor, CursorHow, ListHow, NamesMemory, Store};
use crate::testing::kept::conformance_of_kept_uploads;
use crate::testing::operations::{assert_same, body, delete, get, key, put, put_if, read_stream};
use std::collections::HashSet;
use std::future::poll_fn;

/// Checks that an empty, writable store keeps the promises of the trait [`Store`]. Panics at the
/// first one that it breaks. The caller's executor polls this future.
///
/// # Panics
///
/// If the store is not empty, or does not behave as documented.
pub async fn conformance(store: &dyn Store) {
    let root = store.list(None, ListHow::default()).await;
    assert_eq!(root.expect("the top folder").entries, [], "a new store");
    conformance_of_objects(store).await;
    folders_exist_with_their_objects(store).await;
    delete_distinguishes_objects_and_folders(store).await;
    listings_are_ordered_and_paged(store).await;
    pages_begin_after_any_entry(store).await;
    state_of_the_server_is_stored(store).await;
    claimed_features_exist(store).await;
    if store.features().resumable_uploads {
        let uploads = store.uploads().expect("uploads that continue");
        conformance_of_kept_uploads(uploads).await;
    }
}

/// The part of [`conformance`] that a store without folders and listings passes as well.
///
/// # Panics
///
/// As [`conformance`].
pub async fn conformance_of_objects(store: &dyn Store) {
    objects_are_replaced_whole(store).await;
    contents_are_read_by_position_and_as_streams(store).await;
    failed_conditions_change_nothing(store).await;
    versions_are_never_used_twice(store).await;
    dropped_uploads_leave_nothing(store).await;
    metadata_belongs_to_the_content(store).await;
    readers_never_mix_versions(store).await;
}

async fn objects_are_replaced_whole(store: &dyn Store) {
    assert_eq!(get(store, "whole/a").await, Err(StoreError::NotFound));
    assert_eq!(store.existing_object(&key("whole/a")).await, Ok(None));
    let first = put(store, "whole/a", b"one").await.expect("a new object");
    assert!(first.created && first.meta.size == 3 && first.meta.kind == Kind::File);
    assert_eq!(get(store, "whole/a").await.expect("content"), b"one");
    let second = put(store, "whole/a", b"other").await.expect("replaced");
    assert!(!second.created);
    assert_eq!(get(store, "whole/a").await.expect("content"), b"other");
    let meta = store.meta(&key("whole/a")).await.expect("an object");
    assert_same(&meta, &second.meta);
    let existing = store.existing_object(&key("whole/a")).await;
    assert_eq!(existing, Ok(Some(meta)));
    if let Some(opened) = store.try_get(&key("whole/a")) {
        assert_eq!(opened.expect("an object").meta(), &meta);
    }
}

async fn claimed_features_exist(store: &dyn Store) {
    let (features, at) = (store.features(), key("claimed/a"));
    put(store, "claimed/a", b"one").await.expect("a new object");
    let watch = store.watch(None).await;
    assert_eq!(watch.is_ok(), features.watch, "{:?}", watch.err());
    let made = store.create_folder(&key("claimed/folder")).await;
    match features.empty_folders {
        true => {
            assert_eq!(made, Ok(true));
            assert_eq!(store.create_folder(&key("claimed/folder")).await, Ok(false));
            let deleted = delete(store, "claimed/folder", Kind::Directory).await;
            assert!(deleted.is_ok(), "{deleted:?}");
        }
        false => assert_eq!(made, Err(StoreError::Unsupported)),
    }
    if features.properties_bytes_max > 0 {
        let replaced = store.replace_properties(&at, b"", b"some").await;
        assert_eq!(replaced, Ok(()));
        assert_eq!(store.properties(&at).await, Ok(b"some".to_vec()));
    }
    delete(store, "claimed/a", Kind::File)
        .await
        .expect("deleted");
}

async fn folders_exist_with_their_objects(store: &dyn Store) {
    put(store, "folder/a", b"one").await.expect("a new object");
    assert_eq!(get(store, "folder").await, Err(StoreError::IsDirectory));
    let folder = store.meta(&key("folder")).await.expect("a folder");
    assert_eq!((folder.kind, folder.size), (Kind::Directory, 0));
}

async fn contents_are_read_by_position_and_as_streams(store: &dyn Store) {
    for len in [0, 1, 16_383, 16_384, 16_385, 300_000] {
        let all = body(len);
        put(store, "read/a", &all).await.expect("an object");
        let object = store.get(&key("read/a")).await.expect("an object");
        let size = len as u64;
        for range in [
            0..size,
            0..size / 2,
            size / 3..size,
            size / 3..size / 2,
            size..size,
        ] {
            let expected = &all[range.start as usize..range.end as usize];
            let found = read_stream(&object, range.clone()).await.expect("bytes");
            assert!(found == expected, "stream of {range:?} of {len} bytes");
        }
        let beyond = read_stream(&object, size / 2..size + 9).await;
        assert!(
            beyond.expect("bytes") == all[len / 2..],
            "a range ends with the object"
        );
        let mut read = Vec::with_capacity(len + 5);
        loop {
            let had = read.len();
            read = object.read(had as u64, 70_000, read).await.expect("bytes");
            assert!(read.len() - had <= 70_000);
            if read.len() == had {
                break;
            }
        }
        assert!(read == all, "read of {len} bytes");
        drop(object.stream(0..size)); // Dropping it ends the transfer.
    }
}

async fn failed_conditions_change_nothing(store: &dyn Store) {
    let refused = Err(StoreError::PreconditionFailed);
    let at = "condition/a";
    assert_eq!(put_if(store, at, b"x", Condition::Present).await, refused);
    let none = Condition::Versions(Vec::new());
    assert_eq!(put_if(store, at, b"x", none).await, refused);
    assert_eq!(get(store, at).await, Err(StoreError::NotFound));
    let one = put_if(store, at, b"1", Condition::Absent).await;
    let one = one.expect("a new object");
    assert!(one.created);
    assert_eq!(put_if(store, at, b"x", Condition::Absent).await, refused);
    let versions = Condition::Versions(vec![one.meta.version]);
    let two = put_if(store, at, b"2", versions.clone()).await;
    let two = two.expect("the version is current");
    assert_eq!(put_if(store, at, b"x", versions.clone()).await, refused);
    let either = Condition::Versions(vec![one.meta.version, two.meta.version]);
    let three = put_if(store, at, b"3", either).await;
    let three = three.expect("one of them is current");
    let stale = store.delete(&key(at), Kind::File, versions).await;
    assert_eq!(stale, Err(StoreError::PreconditionFailed));
    assert_eq!(get(store, at).await.expect("content"), b"3");
    let current = Condition::unchanged(Some(&three.meta));
    let deleted = match store.delete(&key(at), Kind::File, current).await {
        // The service cannot compare and delete at once.
        Err(StoreError::Unsupported) => delete(store, at, Kind::File).await,
        deleted => deleted,
    };
    assert_same(&deleted.expect("it is current"), &three.meta);
    let gone = store.delete(&key(at), Kind::File, Condition::Present).await;
    assert_eq!(gone, Err(StoreError::PreconditionFailed));
    let new = put_if(store, at, b"4", Condition::unchanged(None)).await;
    assert!(new.expect("there is no object").created);
}

async fn versions_are_never_used_twice(store: &dyn Store) {
    let mut seen = HashSet::new();
    for number in 0..20 {
        let before = store.generation(&key("version/a"));
        let content = match store.features().versions_by_content {
            true => [b'a' + number; 4],
            false => *b"same",
        };
        let done = put(store, "version/a", &content).await.expect("an object");
        assert!(seen.insert(done.meta.version), "a version was used twice");
        let object = store.get(&key("version/a")).await.expect("an object");
        assert_eq!(object.meta().version, done.meta.version);
        if before.is_some() {
            assert_ne!(store.generation(&key("version/a")), before);
        }
    }
}

async fn dropped_uploads_leave_nothing(store: &dyn Store) {
    for len in [0, 10, 300_000] {
        let mut upload = store
            .stage(&key("drop/a"), Condition::None, None)
            .await
            .expect("an upload");
        upload.write(body(len)).await.expect("room");
        drop(upload);
        let upload = store
            .stage(&key("drop/a"), Condition::None, None)
            .await
            .expect("an upload");
        drop(upload.commit()); // Never polled.
        assert_eq!(get(store, "drop/a").await, Err(StoreError::NotFound));
    }
}

async fn metadata_belongs_to_the_content(store: &dyn Store) {
    let bytes_max = store.features().metadata_bytes_max;
    if bytes_max == 0 {
        return;
    }
    let at = key("metadata/a");
    for metadata in [b"first".to_vec(), vec![b'x'; bytes_max], Vec::new()] {
        let mut upload = store
            .stage(&at, Condition::None, None)
            .await
            .expect("an upload");
        let too_long = upload.set_metadata(vec![b'x'; bytes_max + 1]);
        assert_eq!(too_long, Err(StoreError::TooLarge));
        upload.set_metadata(metadata.clone()).expect("short enough");
        upload.commit().await.expect("an object");
        let object = store.get(&at).await.expect("an object");
        assert_eq!(object.metadata().await.expect("metadata"), metadata);
    }
}

/// An open object keeps its content, or reports that it changed.
async fn readers_never_mix_versions(store: &dyn Store) {
    let old = body(200_000);
    put(store, "reader/a", &old).await.expect("an object");
    let object = store.get(&key("reader/a")).await.expect("an object");
    let mut stream = object.stream(0..200_000);
    let first = poll_fn(|cx| stream.as_mut().poll_next(cx)).await;
    let mut read = first.expect("a piece").expect("bytes").to_vec();
    put(store, "reader/a", &[7; 200_000])
        .await
        .expect("replaced");
    loop {
        match poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
            Some(Ok(piece)) => read.extend_from_slice(&piece),
            Some(Err(error)) => return assert_eq!(error, StoreError::Changed),
            None => break,
        }
    }
    assert!(read == old, "the stream has bytes of two objects");
}

async fn delete_distinguishes_objects_and_folders(store: &dyn Store) {
    let missing = delete(store, "delete/a", Kind::File).await;
    assert_eq!(missing, Err(StoreError::NotFound));
    let done = put(store, "delete/d/a", b"x").await.expect("an object");
    let folder = delete(store, "delete/d", Kind::File).await;
    assert_eq!(folder, Err(StoreError::IsDirectory));
    let full = delete(store, "delete/d", Kind::Directory).await;
    assert_eq!(full, Err(StoreError::NotEmpty));
    let object = delete(store, "delete/d/a", Kind::Directory).await;
    assert_eq!(object, Err(StoreError::NotFound));
    let deleted = delete(store, "delete/d/a", Kind::File).await;
    assert_same(&deleted.expect("an object"), &done.meta);
    assert_eq!(get(store, "delete/d/a").await, Err(StoreError::NotFound));
    // Some stores have no empty folders.
    match delete(store, "delete/d", Kind::Directory).await {
        Ok(meta) => assert_eq!(meta.kind, Kind::Directory),
        Err(error) => assert_eq!(error, StoreError::NotFound),
    }
    put(store, "delete/d/a", b"again").await.expect("an object");
    assert_eq!(get(store, "delete/d/a").await.expect("content"), b"again");
}

async fn state_of_the_server_is_stored(store: &dyn Store) {
    let at = Key::state(b"users/ann").expect("a key");
    for (content, condition) in [(b"1", Condition::Absent), (b"2", Condition::Present)] {
        let mut upload = store.stage(&at, condition, None).await.expect("an upload");
        upload.write(content.to_vec()).await.expect("room");
        upload.commit().await.expect("an object");
        let object = store.get(&at).await.expect("an object");
        assert_eq!(read_stream(&object, 0..1).await.expect("bytes"), content);
    }
    let users = Key::state(b"users").expect("a key");
    let page = store.list(Some(&users), ListHow::default()).await;
    let page = page.expect("a page");
    assert_eq!(page.entries.len(), 1);
    assert_eq!(page.entries[0].name, b"ann");
    let how = ListHow {
        hidden: true,
        ..ListHow::default()
    };
    let root = store.list(None, how).await.expect("a page");
    assert!(root.entries.iter().all(|entry| entry.name != b".onrush"));
    let deleted = store.delete(&at, Kind::File, Condition::Present).await;
    assert_eq!(deleted.expect("the object").size, 1);
    assert_eq!(store.meta(&at).await, Err(StoreError::NotFound));
}

async fn listings_are_ordered_and_paged(store: &dyn Store) {
    // A file system may give names without their case.
    let made = put(store, "first/D", b"x").await;
    made.expect("an object");
    let page = store.list(Some(&key("first")), ListHow::default()).await;
    let keeps_case = page.expect("a page").entries[0].name == b"D";
    let first = if keeps_case { "D" } else { "0" };
    let names = [first, "a", "a.b", "b", "c"];
    for name in ["b", "c/x", "a.b", ".hidden", first, "a", "c/y"] {
        let put = put(store, &format!("list/{name}"), name.as_bytes()).await;
        put.expect("an object");
    }
    let folder = key("list");
    let ask = async |after: Option<Vec<u8>>, limit, hidden| {
        let how = ListHow {
            after,
            limit,
            hidden,
            ..ListHow::default()
        };
        store.list(Some(&folder), how).await.expect("a page")
    };
    let all = ask(None, 100, false).await;
    let found: Vec<&[u8]> = all.entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!(found, names.map(str::as_bytes));
    assert_eq!(all.next, None);
    for entry in &all.entries {
        let at = [b"list/", &entry.name[..]].concat();
        let meta = store.meta(&Key::parse(&at).expect("a key")).await;
        let meta = meta.expect("a listed name");
        assert_eq!((entry.kind, entry.size), (meta.kind, meta.size));
        if entry.kind == Kind::File {
            assert_eq!(entry.version, meta.version);
        }
    }
    assert_eq!(ask(None, 100, true).await.entries[0].name, b".hidden");
    for limit in 1..=names.len() {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = ask(after, limit, false).await;
            assert!(page.entries.len() <= limit);
            found.extend(page.entries);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, all.entries, "pages of {limit}");
        for after in [None, Some(b"a.a".to_vec())] {
            let skipped = if after.is_some() { 2 } else { 0 };
            let how = CursorHow {
                after,
                metadata: true,
                properties: true,
                ..CursorHow::default()
            };
            let mut cursor = Cursor::new(Some(folder.clone()), how, Box::new(NoMemory));
            let mut found = Vec::new();
            loop {
                let more = store.next_entries(&mut cursor, limit).await;
                let more = more.expect("entries");
                assert!(more.len() <= limit);
                if more.is_empty() {
                    break;
                }
                let is_unset =
                    |details: &Option<Vec<u8>>| details.as_deref().is_none_or(<[u8]>::is_empty);
                assert!(more.iter().all(|one| is_unset(&one.properties)));
                found.extend(more.into_iter().map(|one| one.entry));
            }
            assert_eq!(found, all.entries[skipped..], "in steps of {limit}");
            let end = store.next_entries(&mut cursor, limit).await;
            assert_eq!(end.map(|end| end.len()), Ok(0), "it stays at the end");
        }
    }
    assert_eq!(store.check_folder(Some(&folder)).await, Ok(()));
    let none = key("list/none");
    let missing = store.list(Some(&none), ListHow::default()).await;
    assert_eq!(missing, Err(StoreError::NotFound));
    assert_eq!(
        store.check_folder(Some(&none)).await,
        Err(StoreError::NotFound)
    );
    let mut cursor = Cursor::new(Some(none), CursorHow::default(), Box::new(NoMemory));
    let missing = store.next_entries(&mut cursor, 10).await;
    assert_eq!(missing, Err(StoreError::NotFound));
}

/// The least that a cursor needs.
struct NoMemory;

impl NamesMemory for NoMemory {
    fn resize(&mut self, bytes: usize) -> bool {
        bytes == 0
    }
}

/// A page may begin after any entry, also where a folder sorts as if it ended with a slash.
async fn pages_begin_after_any_entry(store: &dyn Store) {
    for name in ["a/x", "a-b", "a.c/x", "a.c", "a0", "b/x"] {
        // Some stores have either an object or a folder with a name.
        let _ = put(store, &format!("order/{name}"), b"x").await;
    }
    let folder = key("order");
    let ask = async |after| {
        let how = ListHow {
            after,
            ..ListHow::default()
        };
        let page = store.list(Some(&folder), how).await;
        page.expect("a page").entries
    };
    let all = ask(None).await;
    assert!(all.len() >= 5);
    let features = store.features();
    assert!(all.is_sorted_by_key(|entry| features.position(entry)));
    for (number, entry) in all.iter().enumerate() {
        let rest = ask(Some(features.position(entry))).await;
        assert_eq!(rest, all[number + 1..], "after {entry:?}");
    }
}
