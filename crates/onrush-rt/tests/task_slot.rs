//! Task slots with futures that were polled before: no wake is lost, whenever it comes, and a wake
//! for an earlier future of the same slot has no effect.

use crate::common::{KERNEL, choice, watchdog};
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

/// A future that a test controls. It counts its polls and drops.
#[derive(Default)]
struct Controlled {
    waker: RefCell<Option<Waker>>,
    is_due: Cell<bool>,
    polls: Cell<u32>,
    drops: Cell<u32>,
}

impl Controlled {
    fn future(self: &Rc<Self>) -> impl Future<Output = ()> + use<> {
        struct Counted(Rc<Controlled>);
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
        waker.expect("a waker from an earlier poll").wake();
    }
}

/// Polls a future as a server does, and makes it a task.
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
        worker.poll(&(), false).expect("the poll succeeds");
    }
}

#[test]
fn task_is_polled_again_only_when_woken() {
    let (mut worker, context) = simulated();
    let controlled = Rc::new(Controlled::default());
    let begun = begin(&context, controlled.future());
    poll(&mut worker);
    assert_eq!((controlled.seen(), context.live_tasks()), ((1, 0), 1));
    controlled.wake();
    poll(&mut worker);
    assert_eq!(controlled.seen(), (2, 0));
    controlled.finish();
    poll(&mut worker);
    assert_eq!((controlled.seen(), context.live_tasks()), ((3, 1), 1));
    drop(begun); // It has ended, so there is nothing to cancel.
    assert_eq!(context.live_tasks(), 0);
    controlled.wake();
    poll(&mut worker);
    assert_eq!(controlled.seen(), (3, 1));
}

#[test]
fn wake_between_first_poll_and_task_start_is_kept() {
    let (mut worker, context) = simulated();
    let controlled = Rc::new(Controlled::default());
    let task_slot = context.task_slot();
    let mut future = Box::pin(controlled.future());
    let polled = (future.as_mut()).poll(&mut Context::from_waker(task_slot.waker()));
    assert!(polled.is_pending());
    controlled.finish();
    task_slot.start(future).detach();
    poll(&mut worker);
    assert_eq!((controlled.seen(), context.live_tasks()), ((2, 1), 0));
}

#[test]
fn dropped_handle_drops_the_future_without_a_poll() {
    let (mut worker, context) = simulated();
    for is_woken in [false, true] {
        let controlled = Rc::new(Controlled::default());
        let begun = begin(&context, controlled.future());
        if is_woken {
            controlled.finish();
        }
        drop(begun);
        // Not dropped here, because the caller may be inside the future.
        assert_eq!(controlled.seen(), (1, 0));
        poll(&mut worker);
        assert_eq!((controlled.seen(), context.live_tasks()), ((1, 1), 0));
    }
}

#[test]
fn slot_is_reused_and_old_wakes_have_no_effect() {
    let (mut worker, context) = simulated();
    let first = Rc::new(Controlled::default());
    begin(&context, first.future()).detach();
    let waker = first.waker.borrow().clone().expect("polled");
    first.finish();
    poll(&mut worker);
    assert_eq!(first.seen(), (2, 1));

    let second = Rc::new(Controlled::default());
    let begun = begin(&context, second.future());
    let same = second
        .waker
        .borrow()
        .as_ref()
        .expect("polled")
        .will_wake(&waker);
    assert!(same);
    waker.wake(); // The waker of the first future.
    poll(&mut worker);
    assert_eq!((second.seen(), context.live_tasks()), ((2, 0), 1));
    drop(begun);
    poll(&mut worker);
    assert_eq!((second.seen(), context.live_tasks()), ((2, 1), 0));
}

#[test]
fn unused_slot_returns_to_the_pool() {
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
fn task_that_cancels_itself_is_dropped_after_its_poll() {
    let (mut worker, context) = simulated();
    let controlled = Rc::new(Controlled::default());
    let handle = Rc::new(RefCell::new(None));
    let (inner, own) = (controlled.future(), handle.clone());
    let mut inner = Box::pin(inner);
    let future = poll_fn(move |cx| {
        drop(own.take());
        inner.as_mut().poll(cx)
    });
    handle.replace(Some(begin(&context, future)));
    for _ in 0..2 {
        controlled.wake();
        poll(&mut worker);
        assert_eq!((controlled.seen(), context.live_tasks()), ((2, 1), 0));
    }
}

/// If the future owns its own handle, dropping it at the end must not end the next future.
#[test]
fn future_may_own_its_own_handle() {
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
    let controlled = Rc::new(Controlled::default());
    begin(&context, controlled.future()).detach();
    poll(&mut worker);
    controlled.finish();
    poll(&mut worker);
    assert_eq!((controlled.seen().1, context.live_tasks()), (1, 0));
}

#[test]
fn panic_ends_only_its_own_task() {
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
    let controlled = Rc::new(Controlled::default());
    begin(&context, controlled.future()).detach();
    controlled.finish();
    poll(&mut worker);
    assert_eq!((controlled.seen(), context.live_tasks()), ((2, 1), 0));
}

#[test]
fn dropped_worker_drops_all_tasks() {
    let (mut worker, context) = simulated();
    let controlled: Vec<Rc<Controlled>> = (0..4).map(|_| Rc::default()).collect();
    let unused = context.task_slot();
    let held = begin(&context, controlled[0].future());
    begin(&context, controlled[1].future()).detach();
    let cancelled = begin(&context, controlled[2].future());
    let done = begin(&context, controlled[3].future());
    controlled[3].finish();
    poll(&mut worker);
    controlled[0].wake();
    drop(cancelled);
    drop(worker);
    assert!(controlled.iter().all(|one| one.drops.get() == 1));
    drop((held, done));
    controlled.iter().for_each(|one| one.wake());
    let late = Rc::new(Controlled::default());
    unused.start(late.future()).detach();
    assert_eq!((late.seen(), context.live_tasks()), ((0, 1), 0));
    assert_eq!(context.live_tasks(), 0);
}

/// Polls until idle, because one event-loop iteration polls a bounded number of tasks.
fn poll_until_idle(worker: &mut Worker) {
    poll(worker);
    while worker.has_work() {
        poll(worker);
    }
}

/// More slots than the pool keeps.
#[test]
#[cfg_attr(miri, ignore = "Miri takes minutes for so many")]
fn very_many_tasks_all_end() {
    let (mut worker, context) = simulated();
    for detached in [false, true, false] {
        let controlled: Vec<Rc<Controlled>> = (0..3000).map(|_| Rc::default()).collect();
        let begun = controlled.iter().map(|one| begin(&context, one.future()));
        let mut handles: Vec<TaskHandle> = begun.collect();
        assert_eq!(context.live_tasks(), 3000);
        if detached {
            handles.drain(..).for_each(TaskHandle::detach);
        }
        controlled.iter().for_each(|one| one.finish());
        poll_until_idle(&mut worker);
        drop(handles);
        poll_until_idle(&mut worker);
        assert!(controlled.iter().all(|one| one.seen() == (2, 1)));
        assert_eq!(context.live_tasks(), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no io_uring, and rustix asks for more")]
fn another_thread_may_wake_a_task() {
    let _dog = watchdog("another_thread_may_wake_a_task");
    for kind in KERNEL {
        let config = Config::default();
        let Some(choice) = choice(kind) else {
            continue;
        };
        let mut worker = Worker::new(&choice, &config, Pools::default(), 0).expect("a worker");
        let context = worker.context().clone();
        for _ in 0..200 {
            let ended = Rc::new(Cell::new(false));
            let (has_ended, own) = (ended.clone(), context.clone());
            let (sender, receiver) = std::sync::mpsc::channel::<Waker>();
            let thread = std::thread::spawn(move || receiver.recv().expect("a waker").wake());
            let mut sender = Some(sender);
            begin(&context, async move {
                poll_fn(|cx| match sender.take() {
                    Some(sender) => {
                        sender
                            .send(cx.waker().clone())
                            .expect("the thread receives the waker");
                        Poll::Pending
                    }
                    None => Poll::Ready(()),
                })
                .await;
                own.sleep(Duration::ZERO).await;
                has_ended.set(true);
            })
            .detach();
            while !ended.get() {
                worker.poll(&(), true).expect("the poll succeeds");
            }
            thread.join().expect("the thread does not panic");
        }
    }
}
