//! Many simultaneous listings: the pool gets few of them, so that its queue stays short for
//! changes.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;

/// A folder with some objects, on a pool with one thread.
fn folder(backend: &Backend) -> Folder {
    let folder = Folder::on(
        backend.root(),
        BlockingPool::threads(1, 16),
        FolderOptions::default(),
    );
    let folder = folder.unwrap();
    for i in 0..20 {
        put(&folder, &format!("dir/{i:02}"), b"x").unwrap();
    }
    folder
}

/// The number of listings that the pool may run at a time.
fn simultaneous_max() -> usize {
    thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

/// Occupies the pool's thread until the sender is used or dropped.
fn occupy(folder: &Folder) -> mpsc::Sender<()> {
    let (release, gate) = mpsc::channel();
    let (begun, begins) = mpsc::channel();
    let job = folder.pool().run(move || {
        begun.send(()).unwrap();
        let _ = gate.recv();
    });
    job.detach();
    begins.recv().unwrap();
    release
}

fn poll<T>(future: &mut LocalFuture<'_, T>) -> Option<T> {
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(future).poll(&mut cx) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Polls all futures in rounds until each is ready.
fn finish<T>(futures: Vec<LocalFuture<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    let mut futures: Vec<_> = futures.into_iter().enumerate().collect();
    while !futures.is_empty() {
        futures.retain_mut(|(index, future)| {
            let result = poll(future);
            let waits = result.is_none();
            results[*index] = result;
            waits
        });
        thread::yield_now();
    }
    results.into_iter().flatten().collect()
}

#[test]
fn put_waits_for_few_of_many_listings() {
    let backend = Backend::real();
    let folder = folder(&backend);
    if folder.writes_inline() {
        return; // In memory (tmpfs), a PUT waits for no other job.
    }
    let at = key("dir");
    let release = occupy(&folder);
    let how = |n: usize| ListHow {
        limit: n + 1, // all different, so that none can be shared
        ..ListHow::default()
    };
    let mut lists: Vec<_> = (0..64).map(|n| folder.list(Some(&at), how(n))).collect();
    for list in &mut lists {
        assert!(poll(list).is_none());
    }
    let ahead = folder.pool().stats().queued;
    assert!(ahead <= simultaneous_max(), "{ahead} jobs are ahead");

    let mut put: LocalFuture<'_, _> = Box::pin(async {
        let mut upload = folder
            .stage(&Key::parse(b"dir/new")?, Condition::None, Some(3))
            .await?;
        upload.write(b"new".to_vec()).await?;
        upload.commit().await
    });
    assert!(poll(&mut put).is_none());
    assert_eq!(folder.pool().stats().queued, ahead + 1);
    release.send(()).unwrap();
    // Only the put is polled, so only listings that the pool already has can run before it.
    while poll(&mut put).is_none_or(|done| !done.unwrap().created) {
        thread::yield_now();
    }
    drop(put);
    let pages = finish(lists);
    for (n, page) in pages.into_iter().enumerate() {
        assert_eq!(page.unwrap().entries.len(), (n + 1).min(21), "{n}");
    }
}

#[test]
fn dropped_listings_do_not_block_others() {
    let backend = Backend::real();
    let folder = folder(&backend);
    let at = key("dir");
    for round in 0..20 {
        let release = occupy(&folder);
        let mut lists: Vec<_> = (0..12)
            .map(|_| folder.list(Some(&at), ListHow::default()))
            .collect();
        for list in &mut lists {
            assert!(poll(list).is_none());
        }
        let mut kept = Vec::new();
        for (index, list) in lists.into_iter().enumerate() {
            if (index + round) % 3 == 0 {
                kept.push(list);
            }
        }
        drop(release);
        for page in finish(kept) {
            assert_eq!(page.unwrap().entries.len(), 20);
        }
    }
}

#[test]
fn waiting_requests_share_one_listing() {
    let backend = Backend::real();
    let folder = folder(&backend);
    let at = key("dir");
    let release = occupy(&folder);
    let before = folder.pool().stats().queued_total;
    let mut lists: Vec<_> = (0..64)
        .map(|_| folder.list(Some(&at), ListHow::default()))
        .collect();
    for list in &mut lists {
        assert!(poll(list).is_none());
    }
    release.send(()).unwrap();
    let pages = finish(lists);
    for page in &pages {
        assert_eq!(page, &pages[0]);
        assert_eq!(page.as_ref().unwrap().entries.len(), 20);
    }
    // Those that found a free permit, and as many that arrived after those had begun.
    let made = folder.pool().stats().queued_total - before;
    assert!(
        made <= 2 * simultaneous_max() as u64,
        "{made} listings were made"
    );

    // A listing includes every change that completed before it was requested.
    for round in 0..50 {
        let mut lists: Vec<_> = (0..4)
            .map(|_| folder.list(Some(&at), ListHow::default()))
            .collect();
        for list in &mut lists {
            let _ = poll(list).map(|page| assert!(page.is_ok()));
        }
        lists.clear();
        let mut others: Vec<_> = (0..4)
            .map(|_| folder.list(Some(&at), ListHow::default()))
            .collect();
        let early: Vec<_> = others.iter_mut().map(poll).collect();
        put(&folder, &format!("dir/r{round}"), b"x").unwrap();
        let late: Vec<_> = (0..4)
            .map(|_| folder.list(Some(&at), ListHow::default()))
            .collect();
        let waiting = others.into_iter().zip(early);
        let waiting = waiting.filter_map(|(other, done)| done.is_none().then_some(other));
        let mut all: Vec<_> = waiting.collect();
        let others = all.len();
        all.extend(late);
        for page in finish(all).into_iter().skip(others) {
            assert_eq!(page.unwrap().entries.len(), 21 + round);
        }
    }
}
