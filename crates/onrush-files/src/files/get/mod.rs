//! GET and HEAD: an object, its other forms, and the pages of a site.
//!
//! Modules, lowest first: `siblings` and `compress` (other forms of an object) · `read` · `site`.

pub(super) mod compress;
pub(super) mod read;
pub(super) mod siblings;
pub(super) mod site;
