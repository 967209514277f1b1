//! The content of folders: a page, all names, and their changes.
//!
//! Modules, lowest first: `sorting` · `archive_format` · `json`, `html` (the forms) ·
//! `implied_folder` · `entries` (all of a folder) · `list` (a page of it), `whole` (one page of
//! all), `watch` and `markdown`.

pub(super) mod archive_format;
pub(super) mod entries;
pub(super) mod html;
pub(super) mod implied_folder;
pub(super) mod json;
pub(super) mod list;
pub(super) mod markdown;
pub(super) mod sorting;
pub(super) mod watch;
pub(super) mod whole;
