//! Stackful coroutines of another crate ("foreign") around, inside and between Onrush's coroutines
//! ("ours"). In whatever order stacks are left, misuse panics and proper use works.

use crate::common::{contract, message, pause, poll};
#[allow(dead_code, unreachable_pub)]
use corosensei::{Coroutine as Foreign, Yielder};
use onrush_coroutine::{Coroutine, is_inside, is_unwinding, scope, try_wait, wait};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;

type Loop = Foreign<(), (), ()>;
type Place<T> = Rc<RefCell<Option<T>>>;

fn put<T>(value: T) -> (Place<T>, Place<T>) {
    let place = Rc::new(RefCell::new(Some(value)));
    (place.clone(), place)
}

fn take<T>(place: &Place<T>) -> T {
    place.borrow_mut().take().expect("a stored value")
}

/// Checks that every function that needs the current coroutine reports that there is none.
fn assert_no_coroutine() {
    assert!(!is_inside() && !is_unwinding());
    assert!(message(|| wait(pause())).contains("wait"));
    assert!(message(|| assert!(try_wait(pause()).is_ok())).contains("wait"));
    assert!(message(|| wait(std::future::ready(()))).contains("wait"));
}

/// Runs one of ours to its end, so that the next one gets its stack.
fn end_one() {
    let mut ended = Coroutine::new(contract(), || {
        let filled = [0x55_u8; 2048];
        assert!(
            std::hint::black_box(&filled)
                .iter()
                .all(|&byte| byte == 0x55)
        );
    });
    assert!(poll(&mut ended).is_ready());
}

/// The future of ours suspends the foreign coroutine, ours ends, and the foreign one is resumed.
#[test]
fn foreign_coroutine_outlives_ours_around_it() {
    scope(|| {
        let (kept, theirs) = put(None::<Loop>);
        let mut ours = Coroutine::new(contract(), move || {
            let mut foreign = Loop::new(|yielder, ()| {
                assert_no_coroutine();
                yielder.suspend(());
                assert_no_coroutine();
                yielder.suspend(());
                assert_no_coroutine();
            });
            assert!(is_inside());
            foreign.resume(());
            assert!(is_inside());
            wait(pause());
            *theirs.borrow_mut() = Some(Some(foreign));
        });
        assert!(poll(&mut ours).is_pending());
        assert!(poll(&mut ours).is_ready());
        let mut foreign = take(&kept).expect("it was made");
        foreign.resume(()); // Ours has ended, and its stack is unused.
        end_one();
        let mut other = Coroutine::new(contract(), move || {
            foreign.resume(()); // Its stack now belongs to another one.
            assert!(foreign.done());
            wait(pause());
        });
        assert!(poll(&mut other).is_pending());
        assert!(poll(&mut other).is_ready());
        assert_no_coroutine();
    });
}

/// While ours is suspended, the foreign one in it is resumed from outside and from another of ours.
#[test]
fn foreign_coroutine_is_resumed_while_ours_is_suspended() {
    scope(|| {
        let (kept, theirs) = put(Loop::new(|yielder, ()| {
            for _ in 0..3 {
                assert_no_coroutine();
                yielder.suspend(());
            }
        }));
        let mut ours = Coroutine::new(contract(), move || {
            let mut foreign = take(&theirs);
            foreign.resume(());
            *theirs.borrow_mut() = Some(foreign);
            wait(pause());
            7
        });
        assert!(poll(&mut ours).is_pending());
        let mut foreign = take(&kept);
        foreign.resume(());
        let mut other = Coroutine::new(contract(), move || {
            foreign.resume(());
            wait(pause());
            drop(foreign);
            is_inside()
        });
        assert!(poll(&mut other).is_pending());
        assert_eq!(poll(&mut ours), Poll::Ready(7));
        assert_eq!(poll(&mut other), Poll::Ready(true));
    });
}

/// A foreign coroutine polls ours, as a generator of another library would.
#[test]
fn foreign_coroutine_around_ours() {
    scope(|| {
        let mut ours = Coroutine::new(contract(), || {
            for _ in 0..3 {
                assert!(is_inside());
                wait(pause());
            }
            "done"
        });
        let mut foreign = Foreign::<(), (), &str>::new(move |yielder, ()| {
            loop {
                assert!(!is_inside());
                if let Poll::Ready(output) = poll(&mut ours) {
                    return output;
                }
                yielder.suspend(());
            }
        });
        for _ in 0..3 {
            assert!(foreign.resume(()).as_yield().is_some());
            end_one();
        }
        assert_eq!(foreign.resume(()).as_return(), Some("done"));
    });
}

/// Ours in a foreign one in ours: only the innermost waits, and each is current again afterwards.
#[test]
fn ours_in_a_foreign_coroutine_in_ours() {
    scope(|| {
        let mut outer = Coroutine::new(contract(), || {
            let mut foreign = Loop::new(|yielder, ()| {
                let mut inner = Coroutine::new(contract(), || {
                    assert!(is_inside());
                    wait(pause());
                    assert!(is_inside());
                });
                while poll(&mut inner).is_pending() {
                    assert_no_coroutine();
                    yielder.suspend(());
                }
                assert_no_coroutine();
            });
            while !foreign.done() {
                foreign.resume(());
                assert!(is_inside());
                wait(pause());
            }
        });
        while poll(&mut outer).is_pending() {}
    });
}

scoped_tls::scoped_thread_local!(static OUTER: Yielder<(), ()>);

/// Suspends the foreign coroutine around the caller.
fn leave() {
    OUTER.with(|yielder| yielder.suspend(()));
}

/// A foreign coroutine whose yielder is available to ours within it.
fn around(mut ours: impl FnMut() + 'static) -> Loop {
    Loop::new(move |yielder, ()| OUTER.set(yielder, &mut ours))
}

fn is_ready<T>(coroutine: &mut Coroutine<T>) {
    assert!(poll(coroutine).is_ready());
}

/// Ours are left by suspending the foreign ones around them, and end in the order in which they
/// began. Each restores the current coroutine that it found, which has ended by then.
#[test]
fn ours_are_left_and_resumed_out_of_order() {
    scope(|| {
        let make = |name: &'static str| {
            around(move || {
                let mut ours = Coroutine::named(contract(), name, move || {
                    assert!(is_inside());
                    leave();
                    let seen = is_inside();
                    leave();
                    seen
                });
                is_ready(&mut ours);
            })
        };
        let mut all: Vec<Loop> = ["a", "b", "c"].map(make).into_iter().collect();
        for _ in 0..2 {
            for foreign in &mut all {
                foreign.resume(());
                assert_no_coroutine();
            }
        }
        for foreign in &mut all {
            foreign.resume(());
            assert!(foreign.done());
            assert_no_coroutine();
        }
        drop(all);
        assert_no_coroutine();
        for _ in 0..4 {
            end_one(); // On the same stacks.
        }
    });
}

/// The guard of an ended coroutine restores a reference to a stack that another one uses by now,
/// which is waiting for a future. That future must not be able to suspend it.
#[test]
fn reused_stack_is_not_mistaken_for_the_old_coroutine() {
    scope(|| {
        let (kept, theirs) = put(None::<Loop>);
        let mut first = Coroutine::new(contract(), move || {
            let mut foreign = around(|| is_ready(&mut Coroutine::new(contract(), leave)));
            foreign.resume(());
            *theirs.borrow_mut() = Some(Some(foreign));
        });
        is_ready(&mut first);
        let mut foreign = take(&kept).expect("it was made");
        let mut second = Coroutine::new(contract(), move || {
            let padding = [1_u8; 300]; // So that its frames differ from those of the first one.
            let polled = wait(poll_fn(move |_| {
                foreign.resume(());
                assert!(foreign.done());
                assert_no_coroutine();
                Poll::Ready(std::hint::black_box(&padding).len())
            }));
            wait(pause());
            polled
        });
        assert!(poll(&mut second).is_pending());
        assert_eq!(poll(&mut second), Poll::Ready(300));
    });
}

/// A dropped foreign coroutine unwinds ours within it, wherever it is suspended.
#[test]
fn dropped_foreign_coroutine_unwinds_ours() {
    struct Counts(Rc<Cell<u32>>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            let _ = try_wait(pending::<()>());
        }
    }
    scope(|| {
        let count = Rc::new(Cell::new(0));
        for waits in [true, false] {
            let dropped = count.clone();
            let mut foreign = around(move || {
                let counts = Counts(dropped.clone());
                let mut ours = Coroutine::new(contract(), move || {
                    let _counts = counts;
                    match waits {
                        true => wait(pending::<()>()),
                        false => leave(),
                    }
                });
                assert!(poll(&mut ours).is_pending());
                leave();
            });
            foreign.resume(());
            drop(foreign);
        }
        assert_eq!(count.get(), 2);
        assert_no_coroutine();
        end_one();
    });
}

/// A foreign coroutine may run a function on the stack of its creator, which is one of ours here.
#[test]
fn function_on_the_creators_stack_runs_as_the_creator() {
    scope(|| {
        let mut ours = Coroutine::new(contract(), || {
            let mut foreign = Foreign::<(), (), bool>::new(|yielder, ()| {
                assert!(!is_inside());
                yielder.on_parent_stack(|| {
                    wait(pause());
                    is_inside()
                })
            });
            let inside = foreign.resume(()).as_return();
            wait(pause());
            inside
        });
        assert!(poll(&mut ours).is_pending());
        assert!(poll(&mut ours).is_pending());
        assert_eq!(poll(&mut ours), Poll::Ready(Some(true)));
    });
}
