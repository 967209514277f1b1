//! The queue, without folders.

use super::super::{Folder, FolderOptions, again};
use super::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;

fn folder(at_once: usize) -> Folder {
    folder_with(at_once, 16)
}

fn folder_with(at_once: usize, threads: usize) -> Folder {
    let root = SimFs::new(1).root().unwrap();
    let options = FolderOptions::default();
    let mut folder = Folder::on(root, BlockingPool::inline(), options).unwrap();
    Arc::get_mut(&mut folder.inner).unwrap().listing_queue =
        ListingQueue::with_permits(at_once, threads);
    folder
}

fn query(limit: usize) -> Arc<Query> {
    let how = ListHow {
        limit,
        ..ListHow::default()
    };
    Arc::new(Query { folder: None, how })
}

/// A page that contains its origin.
fn page(from: &str) -> Page {
    Page {
        entries: Vec::new(),
        next: Some(from.into()),
    }
}

fn share(permit: &Permit, limit: usize, from: &str) {
    permit.share(&query(limit), permit.began(), &page(from));
}

fn poll(wait: &mut Wait) -> Option<Admission> {
    match Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn granted(wait: &mut Wait) -> Option<Permit> {
    match poll(wait)? {
        Admission::Run(permit) => Some(permit),
        Admission::Shared(..) => panic!("unexpected shared page"),
    }
}

#[test]
fn permits_are_granted_in_order_and_skip_dropped_waits() {
    let folder = folder(2);
    let mut waits: Vec<_> = (1..8).map(|n| wait(&folder.inner, &query(n), 0)).collect();
    let mut held: Vec<_> = waits.iter_mut().filter_map(granted).collect();
    assert_eq!(held.len(), 2);
    waits.drain(..2);
    drop(waits.remove(0)); // while waiting
    drop(held.pop());
    assert!(
        granted(&mut waits[1]).is_none(),
        "the permit belongs to another wait"
    );
    drop(waits.remove(0)); // after it was granted
    held.extend(granted(&mut waits[0]));
    assert_eq!(held.len(), 2);
    assert!(granted(&mut waits[1]).is_none());
    held.clear();
    held.extend(granted(&mut waits[1]));
    held.extend(granted(&mut waits[2]));
    assert_eq!(held.len(), 2);
    held.clear();
    assert_eq!(folder.inner.listing_queue.lock().free, 2);
}

#[test]
fn only_pages_started_after_the_request_are_shared() {
    let folder = folder(1);
    let request = |limit| {
        let mut wait = wait(&folder.inner, &query(limit), 0);
        (poll(&mut wait), wait)
    };
    let (Some(Admission::Run(first)), _) = request(1) else {
        panic!("expected a permit")
    };
    let (None, mut early) = request(1) else {
        panic!("expected to wait")
    };
    let (None, mut other) = request(2) else {
        panic!("expected to wait")
    };
    let (None, mut same) = request(1) else {
        panic!("expected to wait")
    };
    share(&first, 1, "first");
    drop(first);
    // It arrived after the first listing began, so perhaps after a change that the first
    // missed.
    let second = granted(&mut early).expect("a permit");
    let (None, mut late) = request(1) else {
        panic!("expected to wait")
    };
    share(&second, 1, "second");
    drop(second);
    let third = granted(&mut other).expect("a permit: no page of this part exists");
    share(&third, 2, "third");
    drop(third);
    match poll(&mut same) {
        Some(Admission::Shared(shared, _permit)) => {
            assert_eq!(shared.next, page("second").next);
            assert!(granted(&mut late).is_none(), "the copy keeps the permit");
        }
        _ => panic!("expected the shared second page"),
    }
    let fourth = granted(&mut late).expect("a permit: the second page began too early");
    share(&fourth, 1, "fourth");
    drop(fourth);
    let state = folder.inner.listing_queue.lock();
    assert_eq!((state.free, state.shared.len()), (1, 0), "no page is kept");
}

#[test]
fn shared_pages_are_bounded() {
    let folder = folder(1);
    let mut waits: Vec<_> = (0..40)
        .map(|n| wait(&folder.inner, &query(n % 20), 0))
        .collect();
    let mut permit = granted(&mut waits[0]);
    for wait in &mut waits[1..] {
        assert!(poll(wait).is_none());
    }
    for wait in &mut waits[1..] {
        permit.take().inspect(|permit| share(permit, 0, ""));
        let state = folder.inner.listing_queue.lock();
        assert!(state.shared.len() <= SHARED_MAX);
        drop(state);
        if let Some(Admission::Run(next)) = poll(wait) {
            permit = Some(next);
        }
    }
}

/// Makes the parts of a client that are in progress stalled.
fn stall(folder: &Folder, client: u64) {
    let mut state = folder.inner.listing_queue.lock();
    for running in state.running.values_mut() {
        if running.client == Some(client) {
            running.since = Instant::now().checked_sub(STALLED).expect("a time");
        }
    }
}

#[test]
fn a_part_that_is_stalled_stops_its_client_only() {
    let folder = folder(1);
    let hung = granted(&mut wait_for_part(&folder.inner, 1, true)).expect("a permit");
    let mut own = part(&folder, 1, true);
    let mut before = part(&folder, 2, true);
    stall(&folder, 1);
    assert!(
        granted(&mut before).is_none(),
        "it is granted at an arrival"
    );
    let mut after = part(&folder, 3, true);
    assert!(granted(&mut own).is_none() && granted(&mut after).is_none());
    let permit = granted(&mut before).expect("the extra permit");
    drop(permit);
    let permit = granted(&mut after).expect("the extra permit");
    // Each part that is stalled adds one, up to the limit.
    let mut held = vec![hung, permit];
    for client in 3.. {
        stall(&folder, client);
        let mut next = part(&folder, client + 1, true);
        match granted(&mut next) {
            Some(permit) => held.push(permit),
            None => break,
        }
    }
    assert_eq!(held.len(), 1 + EXTRA_MAX);
    assert!(granted(&mut own).is_none());
    held.clear();
    assert!(granted(&mut own).is_some());
    drop(own);
    let state = folder.inner.listing_queue.lock();
    assert_eq!((state.free, state.extra, state.running.len()), (1, 0, 0));
}

#[test]
fn permits_for_stalled_parts_leave_threads_to_others() {
    for (at_once, threads, extra) in [(1, 16, 6), (8, 16, 4), (1, 4, 1), (1, 2, 0), (8, 4, 0)] {
        let folder = folder_with(at_once, threads);
        let mut held = Vec::new();
        for client in 0.. {
            let mut wait = wait_for_part(&folder.inner, client, true);
            match granted(&mut wait).or_else(|| granted(&mut wait)) {
                Some(permit) => held.push(permit),
                None => break,
            }
            stall(&folder, client);
        }
        assert_eq!(held.len(), at_once + extra, "{threads}");
    }
}

/// Another request than a listing grants them as well: the client that waits may be the only one
/// that lists.
#[test]
fn a_permit_for_a_stalled_part_needs_no_other_listing() {
    let folder = folder(1);
    let hung = granted(&mut wait_for_part(&folder.inner, 1, true)).expect("a permit");
    let mut other = part(&folder, 2, true);
    stall(&folder, 1);
    let end = Instant::now() + Duration::from_secs(60);
    let permit = loop {
        again::look_if_due(&folder.inner).expect("a folder in use");
        if let Some(permit) = granted(&mut other) {
            break permit;
        }
        assert!(Instant::now() < end, "no permit");
        thread::sleep(Duration::from_millis(10));
    };
    drop((hung, permit));
    let state = folder.inner.listing_queue.lock();
    assert_eq!((state.free, state.extra), (1, 0));
}

/// Waits to go on, or to begin what is not shared, and is polled once.
fn part(folder: &Folder, client: u64, begins: bool) -> Wait {
    let mut wait = wait_for_part(&folder.inner, client, begins);
    assert!(granted(&mut wait).is_none());
    wait
}

/// Which of the requests gets the next permit.
fn next(waits: &mut Vec<(&'static str, Wait)>) -> (&'static str, Permit) {
    let mut polled = waits.iter_mut().map(|(_, wait)| granted(wait));
    let found = polled
        .by_ref()
        .enumerate()
        .find(|(_, permit)| permit.is_some());
    let (index, permit) = found.expect("a permit is free");
    drop(polled);
    (waits.remove(index).0, permit.expect("a permit"))
}

#[test]
fn requests_that_begin_wait_for_one_part_of_those_that_go_on() {
    let folder = folder(1);
    let mut permit = granted(&mut wait_for_part(&folder.inner, 1, true));
    let mut waits: Vec<_> = (0..3)
        .map(|_| ("goes on", part(&folder, 1, false)))
        .collect();
    assert!(permit.as_ref().is_some_and(Permit::is_wanted));
    let mut order = Vec::new();
    for _ in 0..2 {
        waits.push(("begins", part(&folder, 1, true)));
    }
    while !waits.is_empty() {
        drop(permit.take());
        let (which, granted) = next(&mut waits);
        order.push(which);
        permit = Some(granted);
    }
    assert!(!permit.as_ref().is_some_and(Permit::is_wanted));
    let expected = ["begins", "goes on", "begins", "goes on", "goes on"];
    assert_eq!(order, expected);
}

#[test]
fn clients_get_permits_one_after_the_other() {
    let folder = folder(1);
    let mut permit = granted(&mut wait_for_part(&folder.inner, 7, true));
    let mut waits: Vec<_> = (0..5).map(|_| ("many", part(&folder, 1, false))).collect();
    waits.push(("one", part(&folder, 2, false)));
    waits.push(("other", part(&folder, 3, false)));
    let mut order = Vec::new();
    for round in 0..7 {
        drop(permit.take());
        let (which, granted) = next(&mut waits);
        permit = Some(granted);
        order.push(which);
        if which == "one" && round < 5 {
            waits.push(("one", part(&folder, 2, false)));
        }
    }
    let expected = ["many", "one", "other", "many", "one", "many", "one"];
    assert_eq!(order, expected);
}

#[test]
fn a_client_with_many_started_pages_begins_no_more_and_others_do() {
    let folder = folder(1);
    let mut started: Vec<_> = (0..STARTED_MAX)
        .map(|_| StartedPage::new(&folder.inner, 1))
        .collect();
    let permit = granted(&mut wait_for_part(&folder.inner, 1, false));
    let mut waits = vec![
        ("many", part(&folder, 1, true)),
        ("other", part(&folder, 2, true)),
    ];
    drop(permit);
    let (which, permit) = next(&mut waits);
    assert_eq!(which, "other");
    drop(permit);
    assert!(granted(&mut waits[0].1).is_none(), "it has its share");
    started.truncate(STARTED_MAX / 2);
    assert!(granted(&mut waits[0].1).is_none());
    started.pop();
    assert!(granted(&mut waits[0].1).is_some());
    drop(started);
    let state = folder.inner.listing_queue.lock();
    assert_eq!((state.free, state.started.len()), (1, 0));
}

#[test]
fn clients_that_do_not_wait_are_forgotten() {
    let folder = folder(1);
    let mut permit = granted(&mut wait_for_part(&folder.inner, 0, true));
    for client in 0..10 * CLIENTS_MAX as u64 {
        let mut wait = part(&folder, client, true);
        drop(permit.take());
        permit = granted(&mut wait);
        assert!(permit.is_some());
        let state = folder.inner.listing_queue.lock();
        assert!(state.next_turn.len() <= CLIENTS_MAX);
    }
    drop(permit);
    assert!(folder.inner.listing_queue.lock().next_turn.is_empty());
}
