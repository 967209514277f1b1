//! GET and HEAD: an object, its other forms, and the pages of a site.
//!
//! Modules, lowest first: `siblings` (which other forms an object has) · `reads` · `other_forms`
//! and `compress` (objects in these forms) · `read` · `folder` · `site` · `resolve` (what a path
//! names).

pub(super) mod compress;
pub(super) mod folder;
pub(super) mod other_forms;
pub(super) mod read;
pub(super) mod reads;
pub(super) mod resolve;
pub(super) mod siblings;
pub(super) mod site;
