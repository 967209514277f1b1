//! What users leave behind who are removed while the server runs: locks and unfinished uploads.

use crate::files::handler::Files;
use onrush_rt::blocking::block_on;
use std::thread;

impl Files {
    /// Ends what belongs to the users with the names `removed`: their locks at once, and their
    /// unfinished uploads by a thread that this starts. Call it after the users were replaced.
    /// `is_present`: whether a name is that of a user now.
    pub fn forget_users(&self, removed: &[String], is_present: impl Fn(&str) -> bool) {
        let lasting = &self.0.lasting;
        lasting.uploads.set_removed(removed, is_present);
        if removed.is_empty() {
            return;
        }
        let is_removed = |user: &str| removed.iter().any(|name| name == user);
        lasting.locks.remove_of_users(is_removed);
        if !lasting.uploads.are_offered() {
            return;
        }
        let (uploads, removed) = (lasting.uploads.clone(), removed.to_vec());
        let remove = move || {
            if let Err(error) = block_on(uploads.remove_of_users(&removed)) {
                tracing::warn!(%error, "unfinished uploads of removed users remain");
            }
        };
        let thread = thread::Builder::new().name("onrush-former".to_owned());
        if let Err(error) = thread.spawn(remove) {
            tracing::warn!(%error, "unfinished uploads of removed users remain");
        }
    }
}
