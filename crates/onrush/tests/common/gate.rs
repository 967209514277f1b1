//! A server whose jobs wait at a gate and count their outcomes.

use onrush::offload::{CancellationToken, OffloadError};
use onrush::{Application, Request, Response, offload, offload_with};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Blocks jobs until it is opened, and counts them.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    begun: AtomicUsize,
    cancelled: AtomicUsize,
    dropped: AtomicUsize,
}

impl Gate {
    pub fn pass(&self, token: &CancellationToken) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open && !token.is_cancelled() {
            let moment = Duration::from_millis(1);
            open = self.opened.wait_timeout(open, moment).unwrap().0;
        }
        let cancelled = usize::from(token.is_cancelled());
        self.cancelled.fetch_add(cancelled, Ordering::SeqCst);
    }

    pub fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// The numbers of jobs that have begun, were cancelled while running, and have ended in any
    /// way.
    pub fn seen(&self) -> (usize, usize, usize) {
        let read = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        (
            read(&self.begun),
            read(&self.cancelled),
            read(&self.dropped),
        )
    }
}

/// Owned by each job. Counts its end.
struct Inside(Arc<Gate>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

async fn handle(request: Request, gate: Arc<Gate>) -> Result<Response, OffloadError> {
    let inside = Inside(gate);
    match request.path() {
        "/job" => {
            let work = offload_with(move |token| {
                inside.0.pass(token);
                "worked"
            });
            Ok(Response::text(work.await?))
        }
        "/panic" => {
            let work = offload(|| panic!("on purpose: in a job"));
            Ok(Response::text(work.await.map(|()| "")?))
        }
        _ => Ok(Response::text("hello")),
    }
}

pub fn application(gate: &Arc<Gate>) -> impl Application + Clone + use<> {
    let gate = gate.clone();
    move |request| handle(request, gate.clone())
}

/// Waits for an action of another thread. A watchdog limits the time.
pub fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn assert_shed(response: &str) {
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert!(response.contains("\r\nRetry-After: 1\r\n"), "{response}");
    assert!(
        response.ends_with("\r\n\r\ntoo busy, try again\n"),
        "{response}"
    );
}
