//! What a dead process leaves in the folder of kept uploads, and what the next one removes of it.

use crate::common::*;
use crate::edge_common::wait_until;
use onrush_rt::fs::Dir;
use onrush_store::*;
use std::slice;

on_all! {
    what_no_record_names_is_removed
    nothing_is_removed_while_another_process_lives
    what_is_in_use_stays
}

/// Keeps an upload to `at`.
fn keep(folder: &Folder, at: &str, bytes: usize) -> PartialUpload {
    block_on(async {
        let upload = folder.stage(&key(at), Condition::None, None).await;
        let mut upload = upload.unwrap();
        upload.write(body(bytes)).await.unwrap();
        upload.keep().await.unwrap()
    })
}

/// The next process, when the earlier one has ended: its last job may do so a moment later.
fn start(backend: &Backend) -> Folder {
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    wait_until("no process has a folder in staging", || {
        entries(&staging).is_empty()
    });
    backend.folder()
}

fn uploads(backend: &Backend) -> Dir {
    backend.root().open_dir(b".onrush/uploads").unwrap()
}

fn is_kept(folder: &Folder, kept: &PartialUpload) -> bool {
    block_on(folder.is_kept(kept)).unwrap()
}

fn what_no_record_names_is_removed(backend: &Backend) {
    let folder = backend.folder();
    let (known, unknown) = (keep(&folder, "a", 5), keep(&folder, "b", 9000));
    drop(folder);
    let folder = start(backend);
    let new = keep(&folder, "c", 7); // Its record may not be written yet.
    assert_eq!(
        folder.discard_unknown(slice::from_ref(&known), folder.swaps()),
        Ok(1)
    );
    let kept = [&known, &unknown, &new].map(|kept| is_kept(&folder, kept));
    assert_eq!(kept, [true, false, true]);
    assert_eq!(folder.discard_unknown(&[], folder.swaps()), Ok(0), "once");
    drop(folder);
    // A commit has exchanged both files, and the process has ended: the old object has the name.
    let folder = backend.folder();
    put(&folder, "d", &body(100)).unwrap();
    let (root, uploads) = (backend.root(), uploads(backend));
    let name = known.place.split(|&byte| byte == b'/').next().unwrap();
    uploads.rename(name, &root, b"published", false).unwrap();
    root.rename(b"d", &uploads, name, false).unwrap();
    drop(folder);
    let folder = start(backend);
    assert!(!is_kept(&folder, &known));
    assert_eq!(
        folder.discard_unknown(&[known, new.clone()], folder.swaps()),
        Ok(1)
    );
    assert_eq!(entries(&uploads).len(), 1);
    assert!(is_kept(&folder, &new));
    assert_eq!(get(&folder, "published").unwrap().len(), 5);
}

fn nothing_is_removed_while_another_process_lives(backend: &Backend) {
    let other = backend.folder();
    let kept = keep(&other, "a", 5);
    let folder = backend.folder();
    assert_eq!(folder.discard_unknown(&[], folder.swaps()), Ok(0));
    drop(other);
    // That it has ended since does not matter: its record may have been read before.
    assert_eq!(folder.discard_unknown(&[], folder.swaps()), Ok(0));
    assert!(is_kept(&folder, &kept));
}

fn what_is_in_use_stays(backend: &Backend) {
    let kept = keep(&backend.folder(), "a", 5);
    let folder = start(backend);
    block_on(async {
        let resumed = folder.resume(&key("a"), Condition::None, &kept).await;
        let mut upload = resumed.unwrap();
        assert_eq!(folder.discard_unknown(&[], folder.swaps()), Ok(0));
        upload.write(b"more".to_vec()).await.unwrap();
        assert_eq!(upload.commit().await.unwrap().meta.size, 9);
    });
}
