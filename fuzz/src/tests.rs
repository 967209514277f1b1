//! All seeds as plain tests: whole, cut at each place, and with changed bytes.

use super::{chunked, head, hpack, http2, path, pipelined, properties, range};
use std::fs;
use std::path::Path;

/// Inputs with one or two changed bytes for each seed.
const CHANGED: usize = 200;

/// Cuts of a seed that is longer are spread evenly.
const CUTS_MAX: usize = 400;

/// A seed that is longer is cut and changed less often: some checks are quadratic.
const SHORT: usize = 1_000;

/// Calls `check` with the seeds of `target`, and with what is made of them.
fn check_seeds(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .expect("a folder with seeds")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{} has {files:?}", folder.display());
    let mut random = 0x9e37_79b9_u32;
    let mut below = move |end: usize| {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        random as usize % end
    };
    for file in files {
        let seed = fs::read(&file).expect("a seed");
        check(&seed);
        let less = 1 + seed.len() / SHORT * 10;
        let step = 1 + seed.len() * less / CUTS_MAX;
        for cut in (0..seed.len()).step_by(step) {
            check(&seed[..cut]);
        }
        for _ in 0..CHANGED / less {
            let mut changed = seed.clone();
            for _ in 0..=below(2) {
                let at = below(changed.len());
                changed[at] = match below(3) {
                    0 => below(256) as u8,
                    1 => changed[at] ^ 1 << below(8),
                    _ => b"\r\n\t :;,%/-\0"[below(11)],
                };
            }
            check(&changed);
        }
    }
}

#[test]
fn chunked_bodies() {
    check_seeds("chunked", chunked::check_input);
}

#[test]
fn request_heads() {
    check_seeds("head", head::check_input);
}

#[test]
fn header_blocks() {
    check_seeds("hpack", hpack::check_input);
}

#[test]
fn connections_of_http2() {
    check_seeds("http2", http2::check_input);
}

#[test]
fn seeds_of_http2_reach_every_event() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/http2");
    let mut events = Vec::new();
    for file in fs::read_dir(folder).expect("a folder with seeds") {
        let seed = fs::read(file.expect("an entry").path()).expect("a seed");
        events.extend(http2::events(&seed));
    }
    let expected = [
        "Event(Request ",
        "Event(Rejected ",
        "Event(Malformed ",
        "Event(Trailers ",
        "Event(Reset ",
        "Event(Writable { stream: 0 ",
        "Event(Writable { stream: 1 ",
        "Event(Leaving",
        "Content(",
        "End(",
        "Upgrade(true",
        "Upgrade(false",
        "Acted(Some(Length(",
        "Acted(Some(Chunked",
        "Acted(Some(Nothing",
        // The errors of a connection: protocol, windows, closed streams, sizes, header blocks.
        "Fatal(Fatal { code: ErrorCode(1)",
        "Fatal(Fatal { code: ErrorCode(3)",
        "Fatal(Fatal { code: ErrorCode(5)",
        "Fatal(Fatal { code: ErrorCode(6)",
        "Fatal(Fatal { code: ErrorCode(9)",
    ];
    for start in expected {
        let is_there = events.iter().any(|event| event.starts_with(start));
        assert!(is_there, "no seed has {start}");
    }
}

#[test]
fn paths() {
    check_seeds("path", path::check_input);
}

#[test]
fn pipelined_requests() {
    check_seeds("pipelined", pipelined::check_input);
}

#[test]
fn properties_of_clients() {
    check_seeds("properties", properties::check_input);
}

#[test]
fn seeds_of_properties_are_accepted_or_refused_as_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/properties");
    for file in fs::read_dir(folder).expect("a folder with seeds") {
        let path = file.expect("an entry").path();
        let seed = fs::read(&path).expect("a seed");
        let name = path.file_name().expect("a name").to_string_lossy();
        let is_refused = properties::documents(&seed).is_empty();
        assert_eq!(is_refused, name.starts_with("refused-"), "{name}");
    }
}

#[test]
fn ranges() {
    check_seeds("range", range::check_input);
}
