//! Panics in code that a worker calls.
#![forbid(unsafe_code)]

use onrush_rt::driver::Event;
use onrush_rt::driver::sim::{Behaviour, Net};
use onrush_rt::worker::{EventHandler, Worker};
use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Panics in every call and records the calls.
#[derive(Default)]
struct Hostile {
    /// Whether the worker continues after a panic.
    continues: Cell<bool>,
    timers: RefCell<Vec<u64>>,
    panicked: RefCell<Vec<Option<u64>>>,
}

impl EventHandler for Hostile {
    fn on_event(&self, _: Event) {}
    fn on_timer(&self, payload: u64) {
        self.timers.borrow_mut().push(payload);
        panic!("on purpose: a timer");
    }
    fn on_notify(&self) {
        panic!("on purpose: notified");
    }
    fn on_wake(&self) {
        panic!("on purpose: awake");
    }
    fn on_panic(&self, token: Option<u64>) -> bool {
        self.panicked.borrow_mut().push(token);
        if token == Some(2) {
            panic!("on purpose: on_panic");
        }
        self.continues.get()
    }
}

#[test]
fn every_handler_is_called_once_despite_panics() {
    let net = Net::new(1, Behaviour::default());
    let mut worker = Worker::simulated(net.clone(), 0).unwrap();
    let handler = Hostile::default();
    handler.continues.set(true);
    for payload in [1, 2, 3] {
        worker.context().schedule(5, payload);
    }
    worker.notifier().notify();
    net.advance(10);
    assert!(worker.poll(&handler, false).unwrap());
    let mut timers = handler.timers.take();
    timers.sort_unstable();
    assert_eq!(timers, [1, 2, 3]);
    let reported = handler.panicked.take();
    assert_eq!((reported.len(), &reported[..2]), (5, &[None, None][..]));
    assert!(reported[2..].contains(&Some(2)));
}

#[test]
fn panic_propagates_if_the_handler_does_not_continue() {
    let net = Net::new(1, Behaviour::default());
    let mut worker = Worker::simulated(net, 0).unwrap();
    let handler = Hostile::default();
    let result = catch_unwind(AssertUnwindSafe(|| worker.poll(&handler, false)));
    let payload = result.expect_err("the handler panics");
    assert_eq!(payload.downcast_ref(), Some(&"on purpose: awake"));
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose: dropped");
    }
}

struct BombWaker;

impl Wake for BombWaker {
    fn wake(self: Arc<Self>) {
        panic!("on purpose: woken");
    }
}

/// `async_task` ends the process when one of these panics, so it must not see the panic.
#[test]
fn outputs_futures_and_wakers_of_tasks_may_panic() {
    let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).unwrap();
    let context = worker.context().clone();
    context.spawn(async { Bomb }).detach();
    let held = Bomb;
    context
        .spawn(async move {
            let _held = held;
            pending::<()>().await;
        })
        .detach();
    let held = Bomb;
    let cancelled = context.spawn(async move {
        let _held = held;
        pending::<()>().await;
    });
    let unwanted = context.spawn(async { Bomb });
    let mut awaited = context.spawn(async { 7 });
    let waker = Waker::from(Arc::new(BombWaker));
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut awaited).poll(&mut cx).is_pending());
    let mut panics = context
        .spawn(async { panic!("on purpose: polled") })
        .fallible();
    let poll = |worker: &mut Worker| while worker.poll(&(), false).unwrap() {};
    poll(&mut worker);
    drop(cancelled);
    drop(unwanted);
    poll(&mut worker);
    assert!(awaited.is_finished() && panics.is_finished());
    assert_eq!(Pin::new(&mut awaited).poll(&mut cx), Poll::Ready(7));
    assert_eq!(Pin::new(&mut panics).poll(&mut cx), Poll::Ready(None::<()>));
    assert_eq!(context.live_tasks(), 1);
    drop(worker); // Drops the remaining task, too.
}

/// The end of a task is reported after its future was dropped.
#[test]
fn future_is_dropped_before_the_end_of_its_task_is_reported() {
    let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).unwrap();
    let context = worker.context().clone();
    let shared = Rc::new(());
    let held = shared.clone();
    let nap = context.sleep(Duration::ZERO);
    let task = context.spawn(async move {
        nap.await;
        let _held = held;
        "output"
    });
    let output = worker.block_on(async move {
        let output = task.await;
        (output, Rc::strong_count(&shared))
    });
    assert_eq!(output.unwrap(), ("output", 1));
}
