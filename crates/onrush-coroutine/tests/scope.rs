//! Coroutines stored in thread-locals that outlive the thread-locals they refer to: they are leaked
//! and never run.
//!
//! Each referred value counts its drop. A coroutine that is unwound or continues checks the count.

#[allow(dead_code, unreachable_pub)]
use crate::common::{contract, message, pause, poll};
use onrush_coroutine::thread::Builder;
use onrush_coroutine::{Coroutine, counters, scope, spawn, wait};
use onrush_rt::driver::sim::{Behaviour, Net};
use onrush_rt::worker::Worker;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

/// What happened on the thread of a test.
#[derive(Default)]
struct Seen {
    /// Referred values that were dropped.
    gone: AtomicUsize,
    /// Accesses of such a value, by code on the stack of a coroutine, before it was dropped.
    in_time: AtomicUsize,
    /// Accesses after it was dropped.
    too_late: AtomicUsize,
    /// Polls from a destructor that panicked.
    refused: AtomicUsize,
}

/// A value in a thread-local.
struct Referred(Arc<Seen>);

impl Drop for Referred {
    fn drop(&mut self) {
        self.0.gone.fetch_add(1, SeqCst);
    }
}

/// On the stack of a coroutine. Accesses the value when the stack is unwound.
struct Looks<'x>(&'x Referred, Arc<Seen>);

impl Looks<'_> {
    fn look(&self) {
        // Uses the shared counter, because the value may be gone.
        match self.1.gone.load(SeqCst) {
            0 => {
                assert!(Arc::ptr_eq(&self.0.0, &self.1));
                self.1.in_time.fetch_add(1, SeqCst);
            }
            _ => {
                self.1.too_late.fetch_add(1, SeqCst);
            }
        }
    }
}

impl Drop for Looks<'_> {
    fn drop(&mut self) {
        self.look();
    }
}

/// Keeps a coroutine, and polls it when the thread drops this, if so configured.
#[derive(Default)]
struct Keeper {
    coroutine: RefCell<Option<Coroutine<()>>>,
    other: RefCell<Vec<Box<dyn Any>>>,
    polls: Cell<Polls>,
    seen: RefCell<Arc<Seen>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Polls {
    #[default]
    Not,
    Plainly,
    InAScope,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let seen = self.seen.take();
        let try_poll = || {
            if let Some(kept) = &mut *self.coroutine.borrow_mut() {
                let said = message(|| assert!(poll(kept).is_ready()));
                assert!(said.contains("scope"), "{said}");
                seen.refused.fetch_add(1, SeqCst);
            }
        };
        match self.polls.get() {
            Polls::Not => {}
            Polls::Plainly => try_poll(),
            Polls::InAScope => scope(|| {
                try_poll();
                let mut own = Coroutine::new(contract(), || wait(pause()));
                assert!(poll(&mut own).is_pending() && poll(&mut own).is_ready());
                drop(self.coroutine.take());
                self.other.take().clear();
            }),
        }
    }
}

thread_local! {
    static FIRST: Keeper = Keeper::default();
    static VALUE: RefCell<Option<Referred>> = const { RefCell::new(None) };
    static LAST: Keeper = Keeper::default();
}

/// The function of a coroutine that refers to the thread-local value during a wait without end.
fn refers(seen: Arc<Seen>) -> impl FnOnce() {
    move || {
        VALUE.with(|value| {
            let value = value.borrow();
            let looks = Looks(value.as_ref().expect("the value is set"), seen);
            loop {
                wait(pause());
                looks.look();
            }
        });
    }
}

/// Runs `attack` on a thread whose thread-locals are registered in this order: a keeper, the value,
/// a keeper. Returns what was seen until they were dropped.
fn on_a_thread(
    attack: impl FnOnce(&'static std::thread::LocalKey<Keeper>, Arc<Seen>) + Send + Copy + 'static,
) {
    for keeper in [&FIRST, &LAST] {
        let seen = Arc::new(Seen::default());
        let theirs = seen.clone();
        let thread = std::thread::spawn(move || {
            FIRST.with(|_| ());
            VALUE.set(Some(Referred(theirs.clone())));
            LAST.with(|_| ());
            keeper.with(|keeper| keeper.seen.replace(theirs.clone()));
            attack(keeper, theirs);
        });
        thread.join().expect("the thread ends well");
        assert_eq!(
            seen.gone.load(SeqCst),
            1,
            "the value lives no longer than its thread"
        );
        assert_eq!(
            seen.too_late.load(SeqCst),
            0,
            "the value is not accessed afterwards"
        );
    }
}

/// In both orders of destruction, dropped and polled in a destructor.
#[test]
fn coroutine_in_a_thread_local_is_leaked() {
    for polls in [Polls::Not, Polls::Plainly, Polls::InAScope] {
        let attack = move |keeper: &'static std::thread::LocalKey<Keeper>, seen: Arc<Seen>| {
            scope(|| {
                let mut coroutine = Coroutine::new(contract(), refers(seen.clone()));
                assert!(poll(&mut coroutine).is_pending() && poll(&mut coroutine).is_pending());
                keeper.with(|keeper| {
                    keeper.polls.set(polls);
                    keeper.coroutine.replace(Some(coroutine));
                });
            });
            assert_eq!(seen.in_time.load(SeqCst), 1, "it ran once more");
            // Still on the stack of its own thread, but its scope has ended.
            keeper.with(|keeper| {
                let mut kept = keeper.coroutine.borrow_mut();
                let kept = kept.as_mut().expect("a kept coroutine");
                assert!(message(|| assert!(poll(kept).is_ready())).contains("scope"));
            });
        };
        on_a_thread(attack);
    }
}

/// The same with a worker whose tasks are coroutines, dropped with the thread or in a scope there.
#[test]
fn worker_in_a_thread_local_leaks_its_coroutines() {
    for polls in [Polls::Not, Polls::InAScope] {
        let attack = move |keeper: &'static std::thread::LocalKey<Keeper>, seen: Arc<Seen>| {
            scope(|| {
                let net = Net::new(1, Behaviour::default());
                let mut worker = Worker::simulated(net, 0).expect("a worker");
                let starts = seen.clone();
                let starts = Coroutine::new(contract(), move || {
                    drop(spawn(refers(starts)));
                    wait(pending::<()>());
                });
                worker.context().spawn(starts).detach();
                for _ in 0..4 {
                    worker.poll(&(), false).expect("the poll succeeds");
                }
                keeper.with(|keeper| {
                    keeper.polls.set(polls);
                    keeper.other.borrow_mut().push(Box::new(worker));
                });
            });
            // It only waits for an event that does not come.
            assert_eq!(seen.in_time.load(SeqCst), 0);
        };
        on_a_thread(attack);
    }
}

/// A worker that is polled outside the scope continues. Each of its coroutines panics.
#[test]
fn worker_outside_its_scope_continues_without_coroutines() {
    std::thread::spawn(|| {
        let mut worker = scope(|| {
            let worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).unwrap();
            worker
                .context()
                .spawn(Coroutine::new(contract(), || wait(pending::<()>())))
                .detach();
            worker
        });
        let ran = Rc::new(Cell::new(false));
        let other = ran.clone();
        worker
            .context()
            .spawn(async move { other.set(true) })
            .detach();
        for _ in 0..3 {
            worker.poll(&(), false).expect("the poll succeeds");
        }
        assert!(ran.get());
        assert_eq!(worker.context().live_tasks(), 0);
    })
    .join()
    .unwrap();
}

#[test]
fn coroutines_cannot_start_outside_a_scope() {
    assert!(message(|| drop(Coroutine::new(contract(), || ()))).contains("scope"));
    assert!(message(|| drop(Coroutine::named(contract(), "named", || ()))).contains("scope"));
    let error = Coroutine::try_named(contract(), "named", || ()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    // A foreign stack may never be resumed, so no coroutine starts there.
    let mut foreign = corosensei::Coroutine::<(), (), bool>::new(|_, ()| {
        scope(|| Coroutine::try_named(contract(), "named", || ()).is_err())
    });
    assert_eq!(foreign.resume(()).as_return(), Some(true));
}

/// `spawn` has no contract of its own, so it starts coroutines only for code on the stack of one.
#[test]
fn only_coroutines_start_coroutines_without_a_contract() {
    let refused = |act: fn()| {
        let said = message(act);
        assert!(
            said.contains("`Coroutine::new`") && said.contains("`Contract`"),
            "{said}"
        );
    };
    let plainly: fn() = || drop(spawn(|| ()));
    let by_a_builder: fn() = || drop(Builder::new().spawn(|| ()));
    // On a thread without a worker, in a task that is no coroutine, and on a foreign stack.
    scope(|| {
        refused(plainly);
        refused(by_a_builder);
        let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).unwrap();
        let in_a_task = async move {
            refused(plainly);
            refused(by_a_builder);
        };
        worker.block_on(in_a_task).unwrap();
        let mut on_a_foreign_stack = Coroutine::new(contract(), move || {
            let mut foreign = corosensei::Coroutine::<(), (), ()>::new(move |_, ()| {
                refused(plainly);
                refused(by_a_builder);
            });
            foreign.resume(()).as_return().is_some()
        });
        assert_eq!(poll(&mut on_a_foreign_stack), Poll::Ready(true));
        assert_eq!(counters().in_use(), 0, "nothing has started");
        // A future that a coroutine waits for runs on its stack.
        let starts = Coroutine::new(contract(), || {
            let direct = spawn(|| 1);
            let in_a_future = wait(async { spawn(|| spawn(|| 2).join().unwrap()) });
            direct.join().unwrap() + in_a_future.join().unwrap()
        });
        let sum = worker.context().spawn(starts);
        assert_eq!(worker.block_on(sum).unwrap(), 3);
    });
}

/// A drop within the scope unwinds it at once; a drop after it leaks it. One not started is
/// dropped.
#[test]
fn drop_unwinds_within_the_scope_and_leaks_after_it() {
    let count = Rc::new(Cell::new(0));
    struct Counts(Rc<Cell<u32>>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let make = |begins: bool| {
        let counts = Counts(count.clone());
        let mut coroutine = Coroutine::new(contract(), move || {
            let _counts = counts;
            wait(pending::<()>());
        });
        if begins {
            assert!(poll(&mut coroutine).is_pending());
        }
        coroutine
    };
    scope(|| drop(make(true)));
    assert_eq!((count.get(), counters().in_use()), (1, 0));
    drop(scope(|| make(false)));
    assert_eq!((count.get(), counters().in_use()), (2, 0));
    drop(scope(|| make(true)));
    assert_eq!(
        (count.get(), counters().in_use()),
        (2, 1),
        "its stack is not used any more"
    );
    // Another scope does not resume it either.
    let mut kept = scope(|| make(true));
    scope(|| assert!(message(|| assert!(poll(&mut kept).is_ready())).contains("scope")));
    scope(|| drop(kept));
    assert_eq!((count.get(), counters().in_use()), (2, 2));
}

/// `exit(3)` destroys the thread-locals of the calling thread within a scope. One of them holds the
/// coroutine that calls it, and another coroutine refers to a destroyed value.
#[test]
fn exit_in_a_coroutine_leaks_all_coroutines() {
    const CHILD: &str = "ONRUSH_TEST_EXITS";
    let name = "exit_in_a_coroutine_leaks_all_coroutines";
    if std::env::var_os(CHILD).is_none() {
        let mut command = testing::child::only(module_path!(), name);
        let output = command.env(CHILD, "1").output().unwrap();
        let text = testing::child::shown(&output);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(
            text.contains("the keeper is dropped") && !text.contains("looked"),
            "{text}"
        );
        return;
    }
    struct Tells(&'static str);
    impl Drop for Tells {
        fn drop(&mut self) {
            eprintln!("{}", self.0);
        }
    }
    type Place = Option<Coroutine<()>>;
    thread_local! {
        static KEEPER: RefCell<(Place, Place, Tells)> =
            const { RefCell::new((None, None, Tells("the keeper is dropped"))) };
    }
    KEEPER.with(|_| ());
    scope(|| {
        KEEPER.with_borrow_mut(|(waits, exits, _)| {
            let waits = waits.insert(Coroutine::new(contract(), || {
                let _looks = Tells("it has looked");
                wait(pending::<()>());
            }));
            assert!(poll(waits).is_pending());
            let exits = exits.insert(Coroutine::new(contract(), || {
                let _looks = Tells("it has looked");
                std::process::exit(7);
            }));
            let _ = poll(exits);
        });
    });
}

/// The same with thread-locals that are registered after the first coroutine was made. They are
/// destroyed before any that the runtime could register: first the holder, then the value that the
/// coroutine accesses.
#[test]
fn exit_destroys_late_thread_locals_and_unwinds_nothing() {
    const CHILD: &str = "ONRUSH_TEST_EXITS_LATE";
    let name = "exit_destroys_late_thread_locals_and_unwinds_nothing";
    if std::env::var_os(CHILD).is_none() {
        let mut command = testing::child::only(module_path!(), name);
        let output = command.env(CHILD, "1").output().unwrap();
        let text = testing::child::shown(&output);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(
            text.contains("it is destroyed") && !text.contains("looked"),
            "{text}"
        );
        return;
    }
    struct Value;
    impl Drop for Value {
        fn drop(&mut self) {
            eprintln!("it is destroyed");
        }
    }
    struct Looks<'v>(&'v Value);
    impl Drop for Looks<'_> {
        fn drop(&mut self) {
            eprintln!("looked at {:p}", self.0);
        }
    }
    thread_local! {
        static HOLDER: RefCell<Option<Coroutine<()>>> = const { RefCell::new(None) };
        static VALUE: Value = const { Value };
    }
    scope(|| {
        let mut coroutine = Coroutine::new(contract(), || {
            VALUE.with(|value| {
                let _looks = Looks(value);
                wait(pending::<()>());
            });
        });
        HOLDER.with(|_| ());
        assert!(poll(&mut coroutine).is_pending());
        HOLDER.set(Some(coroutine));
        std::process::exit(7);
    });
}
