//! Who may do what: the rules for paths, users, and the rules of a site. They are read again while
//! the server runs.
//!
//! Modules, lowest first: `path_rules` · `users`, `site_rules`.

pub(crate) mod path_rules;
pub(crate) mod site_rules;
pub(crate) mod users;
