//! A request path as a key, and the key as a file. Decoding never panics, and no result opens a
//! file outside the folder.

use onrush_rt::fs::{Beneath, Dir, OpenHow};
use onrush_store::Key;
use percent_encoding::percent_decode;
use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Component, Path, PathBuf},
    sync::LazyLock,
};

const INSIDE: &[u8] = b"inside";
const OUTSIDE: &[u8] = b"outside";

/// Checks one input.
///
/// # Panics
/// If what the module promises does not hold.
pub fn check_input(input: &[u8]) {
    let path = input.split(|&byte| byte == b'?').next().unwrap_or_default();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    // Decoded once, and twice, as a careless proxy would have done before.
    let once: Vec<u8> = percent_decode(path).collect();
    let twice: Vec<u8> = percent_decode(&once).collect();
    for bytes in [path, &once, &twice] {
        if let Ok(key) = Key::parse(bytes) {
            check(&key, bytes);
        }
        // A path that is not a valid key must not leave the folder either.
        open(bytes);
    }
}

/// A key consists of plain segments beneath the folder.
fn check(key: &Key, bytes: &[u8]) {
    assert_eq!(key.as_bytes(), bytes);
    assert!(!bytes.contains(&0) && bytes.len() <= Key::BYTES_MAX);
    let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
    assert!(
        path.components()
            .all(|part| matches!(part, Component::Normal(_)))
    );
    assert_eq!(path.components().count(), key.segments().count());
    let parts: Vec<&[u8]> = key.segments().collect();
    assert_eq!(parts.join(&b'/'), bytes);
    assert_eq!(key.name(), parts[parts.len() - 1]);
    assert_eq!(key.parent().is_none(), parts.len() == 1);
    let _ = (key.hidden(), key.reserved());
}

/// Opens `path` in every supported way. Only content of the folder may be readable.
fn open(path: &[u8]) {
    let sandbox: &Sandbox = &SANDBOX;
    for folder in [&sandbox.by_kernel, &sandbox.by_walk] {
        for opened in [folder.open(path, OpenHow::READ), folder.open_cached(path)] {
            let Ok(file) = opened else { continue };
            let mut content = [0; 16];
            // A directory cannot be read.
            if let Ok(count) = file.read_at(&mut content, 0) {
                assert_eq!(&content[..count], INSIDE, "{}", path.escape_ascii());
            }
        }
    }
}

/// A folder with links that leave it, and a file outside that must not be found.
struct Sandbox {
    by_kernel: Dir,
    by_walk: Dir,
}

static SANDBOX: LazyLock<Sandbox> = LazyLock::new(|| {
    let top = std::env::temp_dir().join("onrush-fuzz-path");
    let root = top.join("a/root");
    build(&top, &root).expect("a temporary folder can be written");
    let open = |beneath| Dir::open_root_with(&root, beneath).expect("the folder can be opened");
    Sandbox {
        by_kernel: open(Beneath::Auto),
        by_walk: open(Beneath::Walk),
    }
});

fn build(top: &Path, root: &Path) -> std::io::Result<()> {
    fs::create_dir_all(root.join("d/e"))?;
    for name in ["f", "d/f", "d/e/f", "%2e", "..."] {
        fs::write(root.join(name), INSIDE)?;
    }
    for name in ["f", "o", "a/f", "a/o"] {
        fs::write(top.join(name), OUTSIDE)?;
    }
    let links: [(&str, PathBuf); 6] = [
        ("u", "..".into()),
        ("o", "../o".into()),
        ("d/u", "../..".into()),
        ("r", "/".into()),
        ("t", top.join("o")),
        ("in", "d/e/f".into()),
    ];
    for (name, leads_to) in links {
        let link = root.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(leads_to, link)?;
        }
    }
    Ok(())
}
