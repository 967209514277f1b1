//! Child processes and threads of a process, read from proc(5).

use std::{ffi::OsStr, fs};

/// A process and all its descendants.
pub fn tree(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while at < all.len() {
        all.extend(children(all[at]));
        at += 1;
    }
    all
}

/// The threads of a running process.
pub fn threads(process: u32) -> Vec<u32> {
    let number = |name: &OsStr| name.to_str()?.parse().ok();
    let entries = fs::read_dir(format!("/proc/{process}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries
        .filter_map(|entry| number(&entry.file_name()))
        .collect()
}

fn children(process: u32) -> Vec<u32> {
    let of = |thread: u32| fs::read_to_string(format!("/proc/{process}/task/{thread}/children"));
    let text: String = threads(process)
        .into_iter()
        .filter_map(|t| of(t).ok())
        .collect();
    text.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}
