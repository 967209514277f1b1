//! Tasks of futures that were polled before: no wake is lost, whenever it comes, and one that is
//! for an earlier future of the same task does no harm.

mod common;

use common::{KERNEL, choice, watchdog};
use onrush_rt::driver::Config;
use onrush_rt::driver::sim::{Behaviour, Net};
use onrush_rt::executor::TaskHandle;
use onrush_rt::worker::{Pools, Worker, WorkerContext};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A future that a test steers: what it was told, and what it has seen.
#[derive(Default)]
struct Steered {
    waker: RefCell<Option<Waker>>,
    is_due: Cell<bool>,
    polls: Cell<u32>,
    drops: Cell<u32>,
}

impl Steered {
    fn future(self: &Rc<Self>) -> impl Future<Output = ()> + use<> {
        struct Counted(Rc<Steered>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.drops.set(self.0.drops.get() + 1);
            }
        }
        let own = Counted(self.clone());
        poll_fn(move |cx| {
            own.0.polls.set(own.0.polls.get() + 1);
            own.0.waker.replace(Some(cx.waker().clone()));
            match own.0.is_due.get() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
    }

    fn seen(&self) -> (u32, u32) {
        (self.polls.get(), self.drops.get())
    }

    fn finish(&self) {
        self.is_due.set(true);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.borrow().clone();
        waker.expect("it was polled").wake();
    }
}

/// Polls it as a server does, and makes a task of it.
fn begin(context: &WorkerContext, future: impl Future<Output = ()> + 'static) -> TaskHandle {
    let task_slot = context.task_slot();
    let mut future: Pin<Box<dyn Future<Output = ()>>> = Box::pin(future);
    let polled = (future.as_mut()).poll(&mut Context::from_waker(task_slot.waker()));
    assert!(polled.is_pending());
    task_slot.start(future)
}

fn simulated() -> (Worker, WorkerContext) {
    let worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).expect("a worker");
    let context = worker.context().clone();
    (worker, context)
}

fn poll(worker: &mut Worker) {
    for _ in 0..4 {
        worker.poll(&(), false).expect("a turn");
    }
}

#[test]
fn it_is_polled_again_when_it_is_woken_and_not_before() {
    let (mut worker, context) = simulated();
    let steered = Rc::new(Steered::default());
    let begun = begin(&context, steered.future());
    poll(&mut worker);
    assert_eq!((steered.seen(), context.live_tasks()), ((1, 0), 1));
    steered.wake();
    poll(&mut worker);
    assert_eq!(steered.seen(), (2, 0));
    steered.finish();
    poll(&mut worker);
    assert_eq!((steered.seen(), context.live_tasks()), ((3, 1), 1));
    drop(begun); // Nothing to cancel, but nobody may have asked before.
    assert_eq!(context.live_tasks(), 0);
    steered.wake();
    poll(&mut worker);
    assert_eq!(steered.seen(), (3, 1));
}

#[test]
fn a_wake_between_the_poll_and_the_beginning_counts() {
    let (mut worker, context) = simulated();
    let steered = Rc::new(Steered::default());
    let task_slot = context.task_slot();
    let mut future = Box::pin(steered.future());
    let polled = (future.as_mut()).poll(&mut Context::from_waker(task_slot.waker()));
    assert!(polled.is_pending());
    steered.finish();
    task_slot.start(future).detach();
    poll(&mut worker);
    assert_eq!((steered.seen(), context.live_tasks()), ((2, 1), 0));
}

#[test]
fn a_dropped_handle_drops_the_future_and_does_not_poll_it() {
    let (mut worker, context) = simulated();
    for is_woken in [false, true] {
        let steered = Rc::new(Steered::default());
        let begun = begin(&context, steered.future());
        if is_woken {
            steered.finish();
        }
        drop(begun);
        assert_eq!(steered.seen(), (1, 0)); // Not here: whoever drops it may be in the midst.
        poll(&mut worker);
        assert_eq!((steered.seen(), context.live_tasks()), ((1, 1), 0));
    }
}

#[test]
fn a_task_is_used_again_and_old_wakes_do_no_harm() {
    let (mut worker, context) = simulated();
    let first = Rc::new(Steered::default());
    begin(&context, first.future()).detach();
    let waker = first.waker.borrow().clone().expect("polled");
    first.finish();
    poll(&mut worker);
    assert_eq!(first.seen(), (2, 1));

    let second = Rc::new(Steered::default());
    let begun = begin(&context, second.future());
    let same = second
        .waker
        .borrow()
        .as_ref()
        .expect("polled")
        .will_wake(&waker);
    assert!(same);
    waker.wake(); // Meant for the first.
    poll(&mut worker);
    assert_eq!((second.seen(), context.live_tasks()), ((2, 0), 1));
    drop(begun);
    poll(&mut worker);
    assert_eq!((second.seen(), context.live_tasks()), ((2, 1), 0));
}

#[test]
fn a_standby_that_is_not_used_costs_nothing() {
    let (mut worker, context) = simulated();
    let task_slot = context.task_slot();
    let waker = task_slot.waker().clone();
    assert_eq!(context.live_tasks(), 0);
    drop(task_slot);
    waker.wake_by_ref();
    poll(&mut worker);
    assert_eq!(context.live_tasks(), 0);
    assert!(context.task_slot().waker().will_wake(&waker));
}

#[test]
fn one_that_cancels_itself_is_dropped_when_its_poll_is_over() {
    let (mut worker, context) = simulated();
    let steered = Rc::new(Steered::default());
    let handle = Rc::new(RefCell::new(None));
    let (inner, own) = (steered.future(), handle.clone());
    let mut inner = Box::pin(inner);
    let future = poll_fn(move |cx| {
        drop(own.take());
        inner.as_mut().poll(cx)
    });
    handle.replace(Some(begin(&context, future)));
    for _ in 0..2 {
        steered.wake();
        poll(&mut worker);
        assert_eq!((steered.seen(), context.live_tasks()), ((2, 1), 0));
    }
}

/// A handle that is dropped by what the future drops at its end must not end the next future.
#[test]
fn a_future_may_hold_its_own_handle() {
    let (mut worker, context) = simulated();
    let handle = Rc::new(RefCell::new(None));
    let own = handle.clone();
    let future = async move {
        let mut first = true;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            match std::mem::replace(&mut first, false) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        drop(own);
    };
    handle.replace(Some(begin(&context, future)));
    poll(&mut worker);
    drop(handle);
    let steered = Rc::new(Steered::default());
    begin(&context, steered.future()).detach();
    poll(&mut worker);
    steered.finish();
    poll(&mut worker);
    assert_eq!((steered.seen().1, context.live_tasks()), (1, 0));
}

#[test]
fn a_panic_ends_that_task_and_the_next_is_another() {
    let (mut worker, context) = simulated();
    let mut polls = 0;
    let begun = begin(
        &context,
        poll_fn(move |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            assert!(polls < 2, "on purpose");
            Poll::Pending
        }),
    );
    poll(&mut worker);
    assert_eq!(context.live_tasks(), 0);
    drop(begun);
    let steered = Rc::new(Steered::default());
    begin(&context, steered.future()).detach();
    steered.finish();
    poll(&mut worker);
    assert_eq!((steered.seen(), context.live_tasks()), ((2, 1), 0));
}

#[test]
fn a_dropped_worker_drops_them_all() {
    let (mut worker, context) = simulated();
    let steered: Vec<Rc<Steered>> = (0..4).map(|_| Rc::default()).collect();
    let unused = context.task_slot();
    let held = begin(&context, steered[0].future());
    begin(&context, steered[1].future()).detach();
    let cancelled = begin(&context, steered[2].future());
    let done = begin(&context, steered[3].future());
    steered[3].finish();
    poll(&mut worker);
    steered[0].wake();
    drop(cancelled);
    drop(worker);
    assert!(steered.iter().all(|one| one.drops.get() == 1));
    drop((held, done));
    steered.iter().for_each(|one| one.wake());
    let late = Rc::new(Steered::default());
    unused.start(late.future()).detach();
    assert_eq!((late.seen(), context.live_tasks()), ((0, 1), 0));
    assert_eq!(context.live_tasks(), 0);
}

/// One iteration of the event loop polls a bounded number of tasks.
fn turn_until_idle(worker: &mut Worker) {
    poll(worker);
    while worker.has_work() {
        poll(worker);
    }
}

/// More than are kept for later.
#[test]
#[cfg_attr(miri, ignore = "Miri takes minutes for so many")]
fn very_many_at_once_all_end() {
    let (mut worker, context) = simulated();
    for detached in [false, true, false] {
        let steered: Vec<Rc<Steered>> = (0..3000).map(|_| Rc::default()).collect();
        let begun = steered.iter().map(|one| begin(&context, one.future()));
        let mut handles: Vec<TaskHandle> = begun.collect();
        assert_eq!(context.live_tasks(), 3000);
        if detached {
            handles.drain(..).for_each(TaskHandle::detach);
        }
        steered.iter().for_each(|one| one.finish());
        turn_until_idle(&mut worker);
        drop(handles);
        turn_until_idle(&mut worker);
        assert!(steered.iter().all(|one| one.seen() == (2, 1)));
        assert_eq!(context.live_tasks(), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no io_uring, and rustix asks for more")]
fn another_thread_may_wake_it() {
    let _dog = watchdog("another_thread_may_wake_it");
    for kind in KERNEL {
        let config = Config::default();
        let Some(choice) = choice(kind, &config) else {
            continue;
        };
        let mut worker = Worker::new(&choice, &config, Pools::default(), 0).expect("a worker");
        let context = worker.context().clone();
        for _ in 0..200 {
            let ended = Rc::new(Cell::new(false));
            let (told, own) = (ended.clone(), context.clone());
            let (sender, receiver) = std::sync::mpsc::channel::<Waker>();
            let thread = std::thread::spawn(move || receiver.recv().expect("a waker").wake());
            let mut sender = Some(sender);
            begin(&context, async move {
                poll_fn(|cx| match sender.take() {
                    Some(sender) => {
                        sender.send(cx.waker().clone()).expect("it waits for it");
                        Poll::Pending
                    }
                    None => Poll::Ready(()),
                })
                .await;
                own.sleep(Duration::ZERO).await;
                told.set(true);
            })
            .detach();
            while !ended.get() {
                worker.poll(&(), true).expect("a turn");
            }
            thread.join().expect("it does not panic");
        }
    }
}
