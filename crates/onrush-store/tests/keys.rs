//! Which bytes are valid keys.

use onrush_store::*;

#[test]
fn valid_keys_preserve_all_bytes() {
    let long = [b"x".repeat(255), b"y".repeat(255)].join(&b'/');
    let good: &[&[u8]] = &[
        b"a",
        b"a/b",
        b"...",
        b"..a",
        b"a..",
        b".hidden/x",
        b"a b\t\n",
        b"a\\b",
        b"%2e%2e",
        b"\xff\xfe",
        b"\xc0\xae\xc0\xae",
        "ü/名前".as_bytes(),
        &long,
    ];
    for bytes in good {
        assert_eq!(
            Key::parse(bytes).map(|key| key.as_bytes().to_vec()),
            Ok(bytes.to_vec())
        );
    }
    let longest = [b'a', b'/'].repeat(2047);
    assert!(Key::parse(&[&longest[..], b"b"].concat()).is_ok());
    assert!(Key::parse(&[&longest[..], b"bc"].concat()).is_err());
}

#[test]
fn invalid_keys_are_refused() {
    let long = b"x".repeat(256);
    let bad: &[&[u8]] = &[
        b"", b"/", b"/a", b"a/", b"a//b", b".", b"..", b"./a", b"../a", b"a/.", b"a/..", b"a/../b",
        b"a/./b", b"a\0", b"\0", &long,
    ];
    for bytes in bad {
        assert_eq!(
            Key::parse(bytes),
            Err(StoreError::InvalidKey),
            "{:?}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn keys_are_split_and_reserved_names_detected() {
    let key = Key::parse(b"a/.b/c").unwrap();
    assert_eq!(key.name(), b"c");
    assert_eq!(key.segments().count(), 3);
    assert_eq!(key.parent(), Key::parse(b"a/.b").ok());
    assert_eq!(Key::parse(b"a").unwrap().parent(), None);
    let class = |text: &str| {
        let key = Key::parse(text.as_bytes()).unwrap();
        (key.hidden(), key.reserved())
    };
    assert_eq!(class("a/b."), (false, false));
    assert_eq!(class("a/.b"), (true, false));
    assert_eq!(class("a/.onrush"), (true, false));
    assert_eq!(class(".onrush"), (true, true));
    assert_eq!(class(".ONrush/staging/x"), (true, true));
    assert_eq!(class(".onrush2"), (true, false));
    let state = Key::state(b"users/ann").unwrap();
    assert!(state.reserved() && state.name() == b"ann");
    for name in [&b""[..], b"../staging", b"a/"] {
        assert_eq!(Key::state(name), Err(StoreError::InvalidKey));
    }
}
