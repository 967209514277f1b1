//! The table of locks, without requests.

use super::*;

const NONE: Holder<'static> = Holder {
    user: None,
    tokens: &[],
};

fn lock(scope: Scope, is_deep: bool) -> Lock {
    Lock {
        token: Token::random().expect("random numbers"),
        scope,
        is_deep,
        owner: "".into(),
        user: None,
        timeout_s: 1,
        expires_ms: 1000,
    }
}

fn touched(key: &str, is_deep: bool) -> Vec<Touched> {
    vec![Touched {
        key: key.into(),
        is_deep,
    }]
}

fn no_locks() -> Arc<Locks> {
    Arc::new(Locks::new(&Shares::new("locks", 100)))
}

/// Grants a lock to its user, or to the clients without an address.
fn grant(locks: &Locks, key: &[u8], lock: Lock, now_ms: u64) -> Result<(), Refused> {
    let client = match &lock.user {
        Some(name) => shares::Holder::user(name),
        None => shares::Holder::address(None),
    };
    locks.grant(key, lock, client, now_ms)
}

/// What a change that removes `key` does at its end.
fn forget(locks: &Arc<Locks>, key: &[u8]) {
    let change = Change {
        locks: locks.clone(),
        touched: Vec::new(),
    };
    change.forget(key);
}

#[test]
fn a_lock_covers_its_key_and_with_depth_what_is_beneath() {
    for (is_deep, key, deep_change, is_refused) in [
        (false, "a", false, true),
        (false, "a/b", false, false),
        (false, "", true, true),
        (false, "", false, false),
        (false, "ab", true, false),
        (true, "a/b/c", false, true),
        (true, "a-b", false, false),
    ] {
        let locks = no_locks();
        let granted = lock(Scope::Exclusive, is_deep);
        let tokens = [granted.token];
        assert_eq!(grant(&locks, b"a", granted, 0), Ok(()));
        let begin = |holder, now_ms| {
            let change = locks.begin_change(touched(key, deep_change), holder, now_ms);
            change.map(drop)
        };
        let refused = is_refused.then(|| b"a".to_vec());
        assert_eq!(begin(NONE, 999).err(), refused, "{key}");
        let mut holder = Holder {
            user: None,
            tokens: &tokens,
        };
        assert_eq!(begin(holder, 999), Ok(()), "{key}");
        holder.user = Some("other");
        assert_eq!(begin(holder, 999).err(), refused, "{key}");
        assert_eq!(begin(NONE, 1000), Ok(()), "{key}: expired");
    }
}

#[test]
fn locks_conflict_unless_both_are_shared() {
    use Scope::{Exclusive, Shared};
    for (first, at, second, to, conflicts) in [
        (lock(Shared, false), "a", lock(Shared, false), "a", false),
        (lock(Shared, false), "a", lock(Exclusive, false), "a", true),
        (lock(Exclusive, false), "a", lock(Shared, false), "a", true),
        (
            lock(Exclusive, false),
            "a",
            lock(Exclusive, false),
            "a/b",
            false,
        ),
        (
            lock(Exclusive, true),
            "a",
            lock(Exclusive, false),
            "a/b",
            true,
        ),
        (
            lock(Exclusive, false),
            "a/b",
            lock(Exclusive, true),
            "a",
            true,
        ),
        (
            lock(Exclusive, false),
            "a/b",
            lock(Exclusive, true),
            "",
            true,
        ),
        (lock(Exclusive, true), "", lock(Shared, false), "a/b", true),
        (
            lock(Exclusive, false),
            "a/b",
            lock(Exclusive, false),
            "a",
            false,
        ),
    ] {
        let locks = no_locks();
        assert_eq!(grant(&locks, at.as_bytes(), first, 0), Ok(()));
        let granted = grant(&locks, to.as_bytes(), second.clone(), 0);
        let expected = match conflicts {
            true => Err(Refused::Conflict(at.into())),
            false => Ok(()),
        };
        assert_eq!(granted, expected, "{at} {to}");
        assert_eq!(
            grant(&locks, to.as_bytes(), second, 1000),
            Ok(()),
            "expired"
        );
    }
}

#[test]
fn no_lock_is_granted_during_a_change() {
    for (key, is_deep, at, is_lock_deep, conflicts) in [
        ("a", false, "a", false, true),
        ("a", false, "a/b", false, false),
        ("a", true, "a/b", false, true),
        ("a/b", false, "a", true, true),
        ("a/b", false, "a", false, false),
    ] {
        let locks = no_locks();
        let change = locks
            .begin_change(touched(key, is_deep), NONE, 0)
            .expect("no lock");
        let wanted = lock(Scope::Shared, is_lock_deep);
        let granted = grant(&locks, at.as_bytes(), wanted.clone(), 0);
        assert_eq!(granted.is_err(), conflicts, "{key} {at}");
        change.forget(at.as_bytes());
        drop(change);
        assert!(locks.table().entries.is_empty());
        assert_eq!(grant(&locks, at.as_bytes(), wanted, 0), Ok(()));
    }
}

#[test]
fn each_client_has_a_share_of_the_locks() {
    let locks = no_locks();
    let shared = |user: Option<&str>| Lock {
        user: user.map(str::to_owned),
        ..lock(Scope::Shared, false)
    };
    let take_all = |user: Option<&str>| {
        (0..).find_map(|at| {
            let key = format!("{user:?}{at}");
            let refused = grant(&locks, key.as_bytes(), shared(user), 0).err()?;
            assert_eq!(refused, Refused::Full(Full::Own));
            Some(at)
        })
    };
    assert_eq!(take_all(None), Some(50));
    assert_eq!(take_all(Some("ann")), Some(25));
    assert_eq!(take_all(Some("bob")), Some(12));
    forget(&locks, b"Some(\"bob\")0");
    assert_eq!(
        take_all(Some("bob")),
        Some(1),
        "there is room for one again"
    );
    assert_eq!(locks.shares.state().used, 87);
    let granted = grant(&locks, b"y", shared(None), 1000);
    assert_eq!(granted, Ok(()), "all have expired");
    assert_eq!(locks.shares.state().used, 1);
    locks.remove_of_users(|_| true);
    forget(&locks, b"");
    assert_eq!(locks.shares.state().used, 0);
}

#[test]
fn the_locks_of_a_key_are_limited() {
    let locks = no_locks();
    for _ in 0..LOCKS_OF_KEY_MAX {
        assert_eq!(grant(&locks, b"f", lock(Scope::Shared, true), 0), Ok(()));
    }
    for key in ["f", "f/a"] {
        let refused = grant(&locks, key.as_bytes(), lock(Scope::Shared, true), 0);
        assert_eq!(refused, Err(Refused::FullAtKey), "{key}");
    }
    assert_eq!(grant(&locks, b"g", lock(Scope::Shared, true), 0), Ok(()));
}

#[test]
fn only_the_holder_refreshes_and_releases() {
    let locks = no_locks();
    let granted = lock(Scope::Exclusive, true);
    let tokens = [granted.token];
    let holder = Holder {
        user: None,
        tokens: &tokens,
    };
    assert_eq!(grant(&locks, b"a", granted, 0), Ok(()));
    assert!(locks.refresh(b"a", NONE, 5, 0).is_none());
    let (at, lock) = locks.refresh(b"a/b", holder, 5, 0).expect("the lock of a");
    assert_eq!((&at[..], lock.expires_ms), (&b"a"[..], 5000));
    assert_eq!(locks.covering(b"a/b", 4999).len(), 1);
    let nobody = |_: &[u8], _: &Lock| false;
    assert!(!locks.release(b"a", NONE, nobody, 0));
    assert!(!locks.release(b"b", holder, nobody, 0));
    assert!(locks.release(b"a", holder, nobody, 0));
    assert!(locks.covering(b"a", 0).is_empty());
}

#[test]
fn who_may_break_a_lock_names_its_token() {
    let locks = no_locks();
    let granted = Lock {
        user: Some("ann".to_owned()),
        ..lock(Scope::Exclusive, true)
    };
    let tokens = [granted.token];
    assert_eq!(grant(&locks, b"a", granted, 0), Ok(()));
    let other = Holder {
        user: Some("bob"),
        tokens: &tokens,
    };
    let may_break = |at: &[u8], lock: &Lock| at == b"a" && lock.is_deep;
    assert!(!locks.release(b"a/b", other, |_, _| false, 0));
    assert!(!locks.release(b"a/b", NONE, may_break, 0), "no token");
    assert!(locks.release(b"a/b", other, may_break, 0));
}

#[test]
fn a_lock_covers_the_siblings_of_its_key() {
    use Scope::{Exclusive, Shared};
    let locks = no_locks();
    let begin = |key: &str, holder| {
        let change = locks.begin_change(touched(key, false), holder, 0);
        change.map(drop).err()
    };
    let granted = lock(Exclusive, false);
    let tokens = [granted.token];
    assert_eq!(grant(&locks, b"d/a", granted, 0), Ok(()));
    assert_eq!(begin("d/a.gz", NONE), None, "they are not served");
    locks.set_covers_siblings(true);
    for sibling in ["d/a.gz", "d/a.br", "d/a.zst"] {
        assert_eq!(begin(sibling, NONE), Some(b"d/a".to_vec()));
        let user = None;
        let holder = Holder {
            user,
            tokens: &tokens,
        };
        assert_eq!(begin(sibling, holder), None);
        let refused = grant(&locks, sibling.as_bytes(), lock(Shared, false), 0);
        assert_eq!(refused, Err(Refused::Conflict(b"d/a".to_vec())));
        assert!(locks.is_covered_by(sibling.as_bytes(), tokens[0], 0));
    }
    assert_eq!(begin("d/b.gz", NONE), None);
    // A lock or a change of a sibling keeps out one of the whole.
    assert_eq!(grant(&locks, b"x.gz", lock(Exclusive, false), 0), Ok(()));
    let refused = grant(&locks, b"x", lock(Exclusive, false), 0);
    assert_eq!(refused, Err(Refused::Conflict(b"x.gz".to_vec())));
    let change = locks.begin_change(touched("y.br", false), NONE, 0);
    let refused = grant(&locks, b"y", lock(Exclusive, false), 0);
    assert_eq!(refused, Err(Refused::Conflict(b"y.br".to_vec())));
    drop(change);
    assert_eq!(grant(&locks, b"y", lock(Exclusive, false), 0), Ok(()));
}

#[test]
fn removed_users_lose_their_locks() {
    let locks = no_locks();
    for (key, user) in [("a", Some("ann")), ("b", Some("bob")), ("c", None)] {
        let granted = Lock {
            user: user.map(str::to_owned),
            ..lock(Scope::Exclusive, false)
        };
        assert_eq!(grant(&locks, key.as_bytes(), granted, 0), Ok(()));
    }
    locks.remove_of_users(|user| user == "ann");
    let left = |key: &[u8]| locks.covering(key, 0).len();
    assert_eq!([left(b"a"), left(b"b"), left(b"c")], [0, 1, 1]);
    assert_eq!(locks.shares.state().used, 2);
}

#[test]
fn a_token_is_a_uuid() {
    let token = Token::random().expect("random numbers");
    let text = token.to_string();
    assert_eq!(Token::parse(&text), Some(token));
    for wrong in [
        &text[1..],
        &text[..44],
        &text.to_uppercase(),
        &text.replace('-', "_"),
    ] {
        assert_eq!(Token::parse(wrong), None, "{wrong}");
    }
    assert_eq!(Token::parse(&(text.clone() + "0")), None);
    let groups: Vec<&str> = text
        .strip_prefix("urn:uuid:")
        .expect("a URN")
        .split('-')
        .collect();
    assert_eq!(
        groups.iter().map(|g| g.len()).collect::<Vec<_>>(),
        [8, 4, 4, 4, 12]
    );
    assert!(groups[2].starts_with('4'));
}
