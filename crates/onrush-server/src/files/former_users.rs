//! What users leave behind who are removed while the server runs: locks and unfinished uploads.

use super::Files;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

impl Files {
    /// Ends what belongs to the users with the names `removed`: their locks at once, and their
    /// unfinished uploads by a thread that this starts. Call it after the users were replaced.
    /// `is_present`: whether a name is that of a user now.
    pub fn forget_users(&self, removed: &[String], is_present: impl Fn(&str) -> bool) {
        let inner = &self.0;
        inner.uploads.set_removed(removed, is_present);
        if removed.is_empty() {
            return;
        }
        let is_removed = |user: &str| removed.iter().any(|name| name == user);
        inner.locks.remove_of_users(is_removed);
        if !inner.uploads.are_offered() {
            return;
        }
        let (uploads, removed) = (inner.uploads.clone(), removed.to_vec());
        let remove = move || {
            if let Err(error) = wait_for(uploads.remove_of_users(&removed)) {
                tracing::warn!(%error, "unfinished uploads of removed users remain");
            }
        };
        let thread = thread::Builder::new().name("onrush-former".to_owned());
        if let Err(error) = thread.spawn(remove) {
            tracing::warn!(%error, "unfinished uploads of removed users remain");
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which waits meanwhile.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
