//! What counts, how processes share what is left, and what an error leaves.

use super::*;

/// What a name counts at least.
const K: u64 = COUNTED_BYTES_MIN;

fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a key")
}

/// Counts so many bytes.
fn counted(bytes: u64) -> impl FnMut(&[Arc<Usage>]) -> Result<()> {
    move |new| {
        new.iter()
            .for_each(|usage| usage.end_count(Some(bytes * K)));
        Ok(())
    }
}

fn usages() -> Arc<Usages> {
    let quota = |prefix: Option<&str>, bytes_max| Quota {
        prefix: prefix.map(key),
        bytes_max,
    };
    let usages = Usages::new();
    let quotas = [quota(None, 100 * K), quota(Some("a/b"), 10 * K)];
    usages.replace(&quotas, counted(0)).expect("counted");
    usages
}

#[test]
fn a_prefix_covers_whole_segments() {
    let quota = &usages().list()[1].clone();
    for (name, expected) in [
        ("a/b/c", true),
        ("a/b", false),
        ("a/bc", false),
        ("x", false),
    ] {
        assert_eq!(quota.covers(&key(name)), expected, "{name}");
    }
    let state = Key::state(b"x").expect("a key");
    assert!(!usages().list()[0].covers(&state));
}

#[test]
fn reservations_are_returned_and_all_quotas_count() {
    let usages = usages();
    let (inside, outside) = (key("a/b/c"), key("x"));
    let mut upload = Reservation::new(&usages, &inside);
    assert!(upload.grow(8 * K).is_ok());
    assert_eq!(upload.grow(3 * K), Err(StoreError::OverQuota));
    assert_eq!(
        usages.list()[0].lock().pending,
        8 * K,
        "a failure changes nothing"
    );
    assert_eq!(usages.check(&inside, 3 * K), Err(StoreError::OverQuota));
    assert!(usages.check(&inside, 2 * K).is_ok() && usages.check(&outside, 92 * K).is_ok());
    assert_eq!(usages.check(&outside, 93 * K), Err(StoreError::OverQuota));
    drop(upload);
    usages.change(&inside, 8 * K, 0);
    usages.change(&outside, 40 * K, 0);
    usages.change(&outside, 50 * K, 40 * K);
    let used: Vec<_> = usages.used().into_iter().map(|(_, used)| used).collect();
    assert_eq!(used, [Some(58 * K), Some(8 * K)]);
    assert!(usages.check(&inside, 2 * K).is_ok());
    assert_eq!(usages.check(&inside, 3 * K), Err(StoreError::OverQuota));
    usages.change(&inside, 0, 8 * K);
    assert!(usages.check(&inside, 10 * K).is_ok());
}

#[test]
fn the_space_of_a_folder_is_that_of_the_quota_with_the_least_room() {
    let usages = usages();
    let space = |available, used| Space {
        available_bytes: available * K,
        used_bytes: used * K,
    };
    usages.change(&key("a/b/c"), 4 * K, 0);
    usages.change(&key("x"), 30 * K, 0);
    for (folder, disk, expected) in [
        (None, 1000, space(66, 34)),
        (None, 7, space(7, 34)),
        (Some("a"), 1000, space(66, 34)),
        (Some("a/b"), 1000, space(6, 4)),
        (Some("a/b/d"), 1000, space(6, 4)),
        (Some("a/bc"), 1000, space(66, 34)),
    ] {
        let found = usages.space(folder.map(key).as_ref(), space(disk, 9));
        assert_eq!(found, Some(expected), "{folder:?} {disk}");
    }
    let upload = Reservation::new(&usages, &key("a/b/d")).grow(7 * K);
    assert_eq!(upload, Err(StoreError::OverQuota));
    // What another process may still add is not for this one.
    let inside = key("a/b");
    usages.hand_over();
    assert_eq!(
        usages.space(Some(&inside), space(1000, 9)),
        Some(space(3, 4))
    );
    usages.end_sharing();
    usages.replace(&[], counted(0)).expect("nothing to count");
    assert_eq!(usages.space(None, space(5, 9)), Some(space(5, 9)));
    let quota = Quota {
        prefix: None,
        bytes_max: K,
    };
    usages.begin(&[quota]);
    assert_eq!(usages.space(None, space(5, 9)), None, "it is not counted");
}

#[test]
fn what_is_added_during_a_count_is_not_lost() {
    let usages = usages();
    usages.change(&key("x"), 50 * K, 0);
    usages.list()[0].begin_count();
    usages.change(&key("y"), 7 * K, 0);
    usages.change(&key("y"), 0, 3 * K);
    usages.list()[0].end_count(Some(40 * K));
    assert_eq!(usages.used()[0].1, Some(47 * K));
    usages.list()[0].begin_count();
    usages.list()[0].end_count(None);
    assert_eq!(
        usages.used()[0].1,
        Some(47 * K),
        "a count that fails changes nothing"
    );
}

#[test]
fn quotas_are_replaced_while_uploads_are_in_progress() {
    let usages = usages();
    usages.change(&key("a/b/c"), 5 * K, 0);
    let mut before = Reservation::new(&usages, &key("a/b/d"));
    assert!(before.grow(5 * K).is_ok());
    let quotas = |text: &[(Option<&str>, u64)]| -> Vec<Quota> {
        let of = |&(prefix, bytes_max): &(Option<&str>, u64)| Quota {
            prefix: prefix.map(key),
            bytes_max,
        };
        text.iter().map(of).collect()
    };
    let next = quotas(&[(Some("a/b"), 20 * K), (Some("a"), 12 * K)]);
    let fail = |_: &[Arc<Usage>]| Err(StoreError::Busy);
    assert_eq!(usages.replace(&next, fail), Err(StoreError::Busy));
    assert_eq!(
        usages.used().len(),
        2,
        "the earlier quotas remain after an error"
    );
    let count = |new: &[Arc<Usage>]| {
        usages.change(&key("a/e"), K, 0); // It may or may not be in the sum.
        assert!(usages.check(&key("a/f"), 50 * K).is_ok(), "not counted yet");
        assert_eq!(usages.check(&key("a/b/f"), K), Err(StoreError::OverQuota));
        assert_eq!(new.len(), 1);
        new[0].end_count(Some(5 * K));
        Ok(())
    };
    usages.replace(&next, count).expect("counted");
    // Of these, five are those of the upload.
    let known = [Some(10 * K), Some(6 * K)];
    assert_eq!(
        usages.used(),
        [(next[0].clone(), known[0]), (next[1].clone(), known[1])]
    );
    // What was known of `a/b` stays: its room includes the upload.
    assert!(usages.check(&key("a/f"), 6 * K).is_ok());
    assert_eq!(usages.check(&key("a/f"), 7 * K), Err(StoreError::OverQuota));
    let full = Reservation::new(&usages, &key("a/b/g")).grow(7 * K);
    assert_eq!(full, Err(StoreError::OverQuota));
    assert_eq!(usages.list()[0].lock().pending, 5 * K);
    drop(before);
    assert_eq!(usages.list()[0].lock().pending, 0);
    assert_eq!(usages.list()[1].lock().pending, 0);
    usages.replace(&[], fail).expect("nothing to count");
    assert!(usages.check(&key("a/b/f"), u64::MAX).is_ok());
}

#[test]
fn small_objects_and_folders_count_a_block() {
    let usages = usages();
    assert_eq!([0, 1, K, K + 1].map(counted_bytes), [K, K, K, K + 1]);
    let mut upload = Reservation::new(&usages, &key("a/b/c"));
    upload.grow(0).expect("room for a name");
    upload.grow(10).expect("room");
    assert_eq!(usages.list()[1].lock().pending, K);
    upload.grow(9 * K - 10).expect("room");
    assert_eq!(usages.list()[1].lock().pending, 9 * K);
    // The folder of a quota does not count itself.
    usages.add_folder(b"a/b").expect("room");
    usages.add_folder(b"a/b/d").expect("room");
    assert_eq!(usages.add_folder(b"a/b/e"), Err(StoreError::OverQuota));
    upload.set(K);
    assert_eq!(upload.grow(9 * K), Err(StoreError::OverQuota));
    usages.remove_folder(b"a/b/d");
    upload.grow(9 * K).expect("room");
    drop(upload);
    let used: Vec<_> = usages.used().into_iter().map(|(_, used)| used).collect();
    assert_eq!(used, [Some(K), Some(0)]);
}

#[test]
fn nothing_is_added_before_the_first_count() {
    let usages = Usages::new();
    let quota = Quota {
        prefix: Some(key("a")),
        bytes_max: 10 * K,
    };
    usages.begin(std::slice::from_ref(&quota));
    assert_eq!(usages.check(&key("a/x"), 1), Err(StoreError::NotCounted));
    assert_eq!(
        usages.check(&key("a/x"), 11 * K),
        Err(StoreError::OverQuota)
    );
    assert_eq!(usages.add_folder(b"a/x"), Err(StoreError::NotCounted));
    assert_eq!(usages.check(&key("x"), 11 * K), Ok(()));
    assert_eq!(usages.used(), [(quota.clone(), None)]);
    usages.list()[0].begin_count();
    usages.list()[0].end_count(None);
    assert_eq!(usages.check(&key("a/x"), 1), Err(StoreError::NotCounted));
    usages.list()[0].begin_count();
    usages.list()[0].end_count(Some(4 * K));
    assert_eq!(usages.used(), [(quota, Some(4 * K))]);
    assert_eq!(usages.check(&key("a/x"), 6 * K), Ok(()));
}

/// Two processes never add more than one may, also if a third one follows.
#[test]
fn processes_share_what_is_left() {
    let of = |bytes_max| Quota {
        prefix: None,
        bytes_max,
    };
    let most = |usages: &Arc<Usages>| {
        let mut most = 0;
        while usages.check(&key("x"), (most + 1) * K).is_ok() {
            most += 1;
        }
        most
    };
    for uploading in [0, 1, 21] {
        let (first, second, third) = (Usages::new(), Usages::new(), Usages::new());
        let quotas = [of(100 * K)];
        first.replace(&quotas, counted(43)).expect("counted");
        let mut upload = Reservation::new(&first, &key("y"));
        upload.grow(uploading * K).expect("room");
        second.begin(&quotas);
        second.take_over(&first.hand_over());
        let left = 57 - uploading.max(1);
        let both = (most(&first), most(&second));
        assert_eq!(both, (left / 2, left - left / 2));
        third.begin(&quotas);
        third.take_over(&second.hand_over());
        assert_eq!(most(&first) + most(&second) + most(&third), left);
        let beyond = first.check(&key("x"), (left / 2 + 1) * K);
        assert_eq!(beyond, Err(StoreError::NotCounted));
        let beyond = first.check(&key("x"), (left + 1) * K);
        assert_eq!(beyond, Err(StoreError::OverQuota));
        first.end_sharing();
        assert_eq!(most(&first), left);
        // Another limit is not known, and is counted.
        second.begin(&[of(101 * K)]);
        second.take_over(&first.hand_over());
        assert_eq!(second.check(&key("x"), 1), Err(StoreError::NotCounted));
    }
}

/// The path of the folder leads to another one while a quota is added: of the earlier one, nothing
/// counts any more.
#[test]
fn quotas_that_are_replaced_during_a_swap_are_not_those_of_before() {
    let usages = usages();
    usages.change(&key("a/b/c"), 5 * K, 0);
    let quota = |prefix: &str, bytes_max| Quota {
        prefix: Some(key(prefix)),
        bytes_max,
    };
    let next = [quota("a/b", 20 * K), quota("n", 7 * K)];
    let mut sums = [3, 4].into_iter();
    let count = |new: &[Arc<Usage>]| {
        let sum = sums.next().expect("counted twice");
        if sum == 3 {
            usages.forget();
        }
        counted(sum)(new)
    };
    assert_eq!(usages.replace(&next, count), Ok(()));
    let [known, new] = next.clone();
    let expected = [(known, None), (new, Some(4 * K))];
    assert_eq!(usages.used(), expected, "the known one is to be counted");
    // A failure does not bring back what was counted before.
    let swap = |_: &[Arc<Usage>]| {
        usages.forget();
        Err(StoreError::Busy)
    };
    assert_eq!(
        usages.replace(&[quota("x", 1)], swap),
        Err(StoreError::Busy)
    );
    assert_eq!(usages.used(), next.map(|quota| (quota, None)));
}
