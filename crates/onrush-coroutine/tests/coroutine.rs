//! Coroutines polled by hand: dropped at every wait, panicking, nested, and on reused stacks.

use crate::common::{contract, finish, message, pause, poll};
use onrush_coroutine::{
    self as coroutine, Coroutine, StackOptions, counters, mpsc, scope, thread, wait,
};
use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Records its name when it is dropped.
struct Note(&'static str, Rc<RefCell<Vec<&'static str>>>);

impl Drop for Note {
    fn drop(&mut self) {
        self.1.borrow_mut().push(self.0);
    }
}

#[test]
fn coroutine_runs_between_waits_and_returns_its_value() {
    scope(|| {
        let steps = Rc::new(Cell::new(0));
        let seen = steps.clone();
        let mut coroutine = Coroutine::new(contract(), move || {
            for step in 1..4 {
                seen.set(step);
                assert!(coroutine::is_inside());
                wait(pause());
            }
            "done".to_owned()
        });
        assert_eq!(steps.get(), 0);
        for step in 1..4 {
            assert!(poll(&mut coroutine).is_pending());
            assert_eq!(steps.get(), step);
            assert!(!coroutine::is_inside());
        }
        assert_eq!(poll(&mut coroutine), Poll::Ready("done".to_owned()));
        assert!(message(|| assert!(poll(&mut coroutine).is_ready())).contains("over"));
    });
}

/// Each poll may have another waker.
#[test]
fn awaited_future_sees_the_current_waker() {
    scope(|| {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let last = Rc::new(RefCell::new(None::<Waker>));
        let place = last.clone();
        let mut coroutine = Coroutine::new(contract(), move || {
            wait(poll_fn(|cx| {
                *place.borrow_mut() = Some(cx.waker().clone());
                Poll::<()>::Pending
            }));
        });
        for _ in 0..3 {
            let count = Arc::new(Count(AtomicUsize::new(0)));
            let waker = Waker::from(count.clone());
            assert!(
                Pin::new(&mut coroutine)
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            last.borrow_mut().take().expect("polled").wake();
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        }
    });
}

#[test]
fn dropped_at_every_wait() {
    scope(|| {
        const WAITS: usize = 6;
        for polls in 0..=WAITS + 1 {
            let notes = Rc::new(RefCell::new(Vec::new()));
            let captured = Note("captured", notes.clone());
            let inner = notes.clone();
            let mut coroutine = Coroutine::new(contract(), move || {
                let _captured = captured;
                let note = |name| Note(name, inner.clone());
                let _first = note("first");
                wait(pause());
                {
                    let _inner = note("inner");
                    wait(pause());
                    wait(pause());
                }
                let _boxed = Box::new(note("boxed"));
                let held = note("owned by the future");
                wait(async move {
                    let _held = &held;
                    pause().await;
                    pause().await;
                });
                let _last = note("last");
                wait(pause());
            });
            for poll_number in 0..polls {
                assert_eq!(poll(&mut coroutine).is_ready(), poll_number == WAITS);
            }
            let in_use = counters().in_use();
            let is_over = coroutine.is_over();
            drop(coroutine);
            assert_eq!(counters().in_use(), in_use - u64::from(!is_over));
            let expected: &[&str] = match polls {
                0 => &["captured"],
                1 => &["first", "captured"],
                2 | 3 => &["inner", "first", "captured"],
                4 | 5 => &["inner", "owned by the future", "boxed", "first", "captured"],
                _ => &[
                    "inner",
                    "owned by the future",
                    "last",
                    "boxed",
                    "first",
                    "captured",
                ],
            };
            assert_eq!(*notes.borrow(), expected, "after {polls} polls");
            assert_eq!(Rc::strong_count(&notes), 1);
        }
    });
}

#[test]
fn panic_propagates_from_the_poll() {
    scope(|| {
        for waits in 0..3 {
            let mut coroutine = Coroutine::new(contract(), move || {
                (0..waits).for_each(|_| wait(pause()));
                panic!("on purpose: after {waits} waits");
            });
            for _ in 0..waits {
                assert!(poll(&mut coroutine).is_pending());
            }
            let said = message(|| assert!(poll::<Coroutine<()>>(&mut coroutine).is_ready()));
            assert_eq!(said, format!("on purpose: after {waits} waits"));
            assert!(coroutine.is_over() && !coroutine::is_inside());
        }
    });
}

#[test]
fn nested_coroutines() {
    scope(|| {
        fn nested(depth: u32) -> u32 {
            wait(pause());
            let below = match depth {
                0 => 0,
                _ => wait(Coroutine::new(contract(), move || nested(depth - 1))),
            };
            wait(pause());
            below + 1
        }
        assert_eq!(finish(Coroutine::new(contract(), || nested(20))), 21);
        // The inner one is polled by hand and panics. The outer one continues.
        let outer = Coroutine::new(contract(), || {
            let mut inner = Coroutine::new(contract(), || {
                wait(pause());
                panic!("on purpose: inside");
            });
            assert!(poll::<Coroutine<()>>(&mut inner).is_pending());
            assert!(coroutine::is_inside());
            wait(pause());
            assert_eq!(
                message(|| assert!(poll(&mut inner).is_ready())),
                "on purpose: inside"
            );
            wait(pause());
            7
        });
        assert_eq!(finish(outer), 7);
        // The outer one is dropped while the inner one waits, so both are unwound.
        let notes = Rc::new(RefCell::new(Vec::new()));
        let (a, b) = (Note("outer", notes.clone()), Note("inner", notes.clone()));
        let mut outer = Coroutine::new(contract(), move || {
            let _a = a;
            wait(Coroutine::new(contract(), move || {
                let _b = b;
                wait(pending::<()>());
            }));
        });
        assert!(poll(&mut outer).is_pending());
        drop(outer);
        assert_eq!(*notes.borrow(), ["inner", "outer"]);
    });
}

#[test]
fn wait_outside_a_coroutine_panics() {
    scope(|| {
        assert!(message(|| wait(ready(()))).contains("this is not one"));
        let said = message(|| finish(Coroutine::new(contract(), || wait(async { wait(pause()) }))));
        assert!(said.contains("await instead"), "{said}");
        assert!(!coroutine::is_inside());
    });
}

#[test]
fn stacks_are_reused() {
    scope(|| {
        let address = || {
            let context = 0_u8;
            (&raw const context).addr()
        };
        let first = finish(Coroutine::new(contract(), address));
        let before = counters();
        for _ in 0..1000 {
            let again = finish(Coroutine::new(contract(), address));
            assert!(again.abs_diff(first) < 4096, "another stack");
        }
        assert_eq!((before.in_use(), before.pooled()), (0, 32));
    });
}

#[inline(never)]
fn deep(levels: u32) -> u64 {
    let mut frame = [levels as u8; 900];
    std::hint::black_box(&mut frame);
    match levels {
        0 => 0,
        _ => deep(levels - 1) + u64::from(frame[levels as usize % 900] == levels as u8),
    }
}

#[test]
fn deep_recursion_fits_on_the_stack() {
    scope(|| {
        // A little more than 900 bytes for each level, in any profile: 230 KiB at most.
        let levels = 180;
        assert_eq!(
            finish(Coroutine::new(contract(), move || deep(levels))),
            u64::from(levels)
        );
        coroutine::configure(&StackOptions {
            stack_bytes: 4 << 20,
            ..StackOptions::default()
        });
        let levels = 2_500;
        assert_eq!(
            finish(Coroutine::new(contract(), move || deep(levels))),
            u64::from(levels)
        );
        assert!(counters().touched_bytes_max() >= 160 * 900);
    });
}

/// A destructor that waits, as that of a `BufWriter` or of a pool's guard does.
struct WaitsWhenDropped(mpsc::SyncSender<u8>, mpsc::Receiver<u8>, Rc<Cell<bool>>);

impl Drop for WaitsWhenDropped {
    fn drop(&mut self) {
        thread::sleep(Duration::from_secs(1));
        thread::yield_now();
        assert!(self.0.send(1).is_err() && self.1.recv().is_err());
        assert_eq!(wait(ready(7)), 7);
        self.2.set(true);
    }
}

#[test]
fn destructors_may_try_to_wait() {
    scope(|| {
        for panics in [false, true] {
            let done = Rc::new(Cell::new(false));
            let seen = done.clone();
            let mut coroutine = Coroutine::new(contract(), move || {
                let (full, _receiver) = mpsc::sync_channel(1);
                full.send(0).unwrap();
                let (_sender, empty) = mpsc::sync_channel(1);
                let _guard = WaitsWhenDropped(full, empty, seen);
                wait(pause());
                assert!(!panics, "on purpose");
                wait(pending())
            });
            assert!(poll(&mut coroutine).is_pending());
            match panics {
                true => assert_eq!(
                    message(|| assert!(poll(&mut coroutine).is_ready())),
                    "on purpose"
                ),
                false => assert!(poll::<Coroutine<()>>(&mut coroutine).is_pending()),
            }
            drop(coroutine);
            assert!(done.get());
        }
    });
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose: when dropped");
    }
}

#[test]
fn coroutine_that_catches_the_unwinding_is_unwound_again() {
    scope(|| {
        let rounds = Rc::new(Cell::new(0));
        let seen = rounds.clone();
        let mut coroutine = Coroutine::new(contract(), move || {
            for _ in 0..5 {
                let caught = catch_unwind(|| wait(pending::<()>()));
                assert!(caught.is_err());
                seen.set(seen.get() + 1);
            }
            Bomb // Its panic is ignored.
        });
        assert!(poll(&mut coroutine).is_pending());
        drop(coroutine);
        assert_eq!(rounds.get(), 5);
        // One that panics again, and one that has not started.
        let mut coroutine = Coroutine::new(contract(), || {
            let _ = catch_unwind(|| wait(pending::<()>()));
            std::panic::panic_any(Bomb);
        });
        assert!(poll::<Coroutine<()>>(&mut coroutine).is_pending());
        drop(coroutine);
        let bomb = Bomb;
        drop(Coroutine::new(contract(), move || drop(bomb)));
        assert_eq!(counters().in_use(), 0);
    });
}

#[test]
fn coroutine_dropped_while_the_thread_panics() {
    scope(|| {
        let notes = Rc::new(RefCell::new(Vec::new()));
        let note = Note("inside", notes.clone());
        let mut coroutine = Coroutine::new(contract(), move || {
            let _note = note;
            wait(pending::<()>());
        });
        assert!(poll(&mut coroutine).is_pending());
        let said = message(move || {
            let _dropped_by_the_panic = coroutine;
            panic!("on purpose");
        });
        assert_eq!(said, "on purpose");
        assert_eq!(*notes.borrow(), ["inside"]);

        /// Polls a coroutine to its end when dropped.
        struct Polls(Coroutine<u8>);
        impl Drop for Polls {
            fn drop(&mut self) {
                assert!(poll(&mut self.0).is_pending());
                assert_eq!(poll(&mut self.0), Poll::Ready(3));
            }
        }
        let polls = Polls(Coroutine::new(contract(), || {
            wait(pause());
            3
        }));
        message(move || {
            let _polls = polls;
            panic!("on purpose");
        });
    });
}

#[test]
fn forgotten_coroutine_keeps_its_stack() {
    scope(|| {
        let mut kept = Box::pin(Coroutine::new(contract(), || {
            let on_stack = [7_u8; 1000];
            wait(pause());
            on_stack.iter().map(|&byte| u64::from(byte)).sum::<u64>()
        }));
        assert!(poll(&mut kept).is_pending());
        coroutine::configure(&StackOptions::default()); // A new pool, which only this test uses.
        let mut forgotten = Coroutine::new(contract(), || wait(pending::<()>()));
        assert!(poll(&mut forgotten).is_pending());
        std::mem::forget(forgotten);
        for _ in 0..100 {
            assert_eq!(finish(Coroutine::new(contract(), || deep(20))), 20);
        }
        assert_eq!(poll(&mut kept), Poll::Ready(7000));
        assert_eq!(counters().in_use(), 1);
    });
}

#[test]
fn large_and_aligned_closures() {
    scope(|| {
        #[repr(align(64))]
        struct Aligned([u8; 64]);
        let (large, aligned) = ([5_u8; 20_000], Aligned([6; 64]));
        let sum = finish(Coroutine::new(contract(), move || {
            let aligned = &aligned;
            assert_eq!((&raw const *aligned).addr() % 64, 0);
            large
                .iter()
                .chain(&aligned.0)
                .map(|&byte| u64::from(byte))
                .sum::<u64>()
        }));
        assert_eq!(sum, 100_000 + 6 * 64);
        let result = finish(Coroutine::new(contract(), || [9_u8; 10_000]));
        assert!(result.iter().all(|&byte| byte == 9));
    });
}

/// A future that is not `Unpin`, on a stack that does not move.
#[test]
fn pinned_future_does_not_move() {
    scope(|| {
        let coroutine = Coroutine::new(contract(), || {
            let mut future = pin!(async {
                let context = [1_u8; 100];
                let place = (&raw const context).addr();
                pause().await;
                assert_eq!(place, (&raw const context).addr());
                context.len()
            });
            wait(pause());
            wait(future.as_mut())
        });
        let mut moved = Box::new(coroutine);
        assert!(poll(&mut *moved).is_pending());
        assert_eq!(finish(*moved), 100);
    });
}

/// Waits when it is dropped, as a `BufWriter` on a socket does.
struct Flushes;

impl Drop for Flushes {
    fn drop(&mut self) {
        let _ = coroutine::try_wait(std::future::pending::<()>());
    }
}

/// A coroutine may catch any number of its own panics.
#[test]
fn own_panics_do_not_count_as_caught_unwinding() {
    scope(|| {
        let _silence = testing::panics::silence(|info| info.payload_as_str() == Some("on purpose"));
        let count = finish(Coroutine::new(contract(), || {
            let fails = |_: &u32| {
                let _flushes = Flushes;
                panic!("on purpose");
            };
            let caught = |number: &u32| catch_unwind(AssertUnwindSafe(|| fails(number))).is_err();
            (0..110_000_u32).filter(caught).count()
        }));
        assert_eq!(count, 110_000);
    });
}

/// A dropped coroutine that catches every unwinding and waits again is leaked.
#[test]
fn coroutine_that_catches_every_unwinding_is_leaked() {
    scope(|| {
        let counts = Rc::new(Cell::new(0));
        let own = counts.clone();
        let mut stubborn = Coroutine::new(contract(), move || {
            loop {
                own.set(own.get() + 1);
                let _ = std::panic::catch_unwind(|| coroutine::wait(std::future::pending::<()>()));
            }
        });
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(pin!(&mut stubborn).as_mut().poll(&mut cx).is_pending());
        drop(stubborn);
        let times = counts.get();
        assert!(times > 1 && times < 100_000, "{times}");
        assert_eq!(
            Rc::strong_count(&counts),
            2,
            "nothing on its stack is dropped"
        );
    });
}
