//! Shared by the unit tests.

use crate::cache::CacheOptions;
use onrush_rt::descriptors::Descriptors;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

pub(crate) fn cache_options(bytes_max: u64) -> CacheOptions {
    CacheOptions {
        origin: "a test".to_owned(),
        bytes_max,
        descriptors: Descriptors::default(),
        report: Arc::new(|_| {}),
    }
}
