//! Stackful coroutines of another crate around ours, inside ours, and in between. Whatever they do
//! to the order in which stacks are left, misuse panics, and proper use works.
#![forbid(unsafe_code)]

#[allow(dead_code, unreachable_pub)]
#[path = "common/coroutines.rs"]
mod coroutines;

use corosensei::{Coroutine as Foreign, Yielder};
use coroutines::{message, pause, poll};
use onrush_rt::coroutine::{Coroutine, is_inside, is_unwinding, scope, try_wait, wait};
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
    place.borrow_mut().take().expect("it was put there")
}

/// What every function says that asks which coroutine its caller is.
fn asks_in_vain() {
    assert!(!is_inside() && !is_unwinding());
    assert!(message(|| wait(pause())).contains("wait"));
    assert!(message(|| assert!(try_wait(pause()).is_ok())).contains("wait"));
    assert!(message(|| wait(std::future::ready(()))).contains("wait"));
}

/// One of ours that has been used up, so that its stack is the next one's.
fn end_one() {
    let mut ended = Coroutine::new(|| {
        let filled = [0x55_u8; 2048];
        assert!(
            std::hint::black_box(&filled)
                .iter()
                .all(|&byte| byte == 0x55)
        );
    });
    assert!(poll(&mut ended).is_ready());
}

/// The attack: its future suspends the foreign coroutine, ours ends, and the foreign one goes on.
#[test]
fn a_foreign_one_inside_ours_outlives_it() {
    scope(|| {
        let (kept, theirs) = put(None::<Loop>);
        let mut ours = Coroutine::new(move || {
            let mut foreign = Loop::new(|yielder, ()| {
                asks_in_vain();
                yielder.suspend(());
                asks_in_vain();
                yielder.suspend(());
                asks_in_vain();
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
        foreign.resume(()); // Ours has ended, and its stack is nobody's.
        end_one();
        let mut other = Coroutine::new(move || {
            foreign.resume(()); // Its stack is another one's.
            assert!(foreign.done());
            wait(pause());
        });
        assert!(poll(&mut other).is_pending());
        assert!(poll(&mut other).is_ready());
        asks_in_vain();
    });
}

/// While ours is suspended, its foreign one is resumed from outside, and from another of ours.
#[test]
fn a_foreign_one_is_resumed_while_ours_is_suspended() {
    scope(|| {
        let (kept, theirs) = put(Loop::new(|yielder, ()| {
            for _ in 0..3 {
                asks_in_vain();
                yielder.suspend(());
            }
        }));
        let mut ours = Coroutine::new(move || {
            let mut foreign = take(&theirs);
            foreign.resume(());
            *theirs.borrow_mut() = Some(foreign);
            wait(pause());
            7
        });
        assert!(poll(&mut ours).is_pending());
        let mut foreign = take(&kept);
        foreign.resume(());
        let mut other = Coroutine::new(move || {
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

/// A foreign one that drives ours, as a generator of somebody's would.
#[test]
fn a_foreign_one_around_ours() {
    scope(|| {
        let mut ours = Coroutine::new(|| {
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

/// Ours in a foreign one in ours: only the innermost waits, and each is known again afterwards.
#[test]
fn ours_in_a_foreign_one_in_ours() {
    scope(|| {
        let mut outer = Coroutine::new(|| {
            let mut foreign = Loop::new(|yielder, ()| {
                let mut inner = Coroutine::new(|| {
                    assert!(is_inside());
                    wait(pause());
                    assert!(is_inside());
                });
                while poll(&mut inner).is_pending() {
                    asks_in_vain();
                    yielder.suspend(());
                }
                asks_in_vain();
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

/// A foreign coroutine whose yielder the coroutines of ours within it can have.
fn around(mut ours: impl FnMut() + 'static) -> Loop {
    Loop::new(move |yielder, ()| OUTER.set(yielder, &mut ours))
}

fn is_ready<T>(coroutine: &mut Coroutine<T>) {
    assert!(poll(coroutine).is_ready());
}

/// Ours are left by suspending the foreign ones around them, and ended in the order in which they
/// began: each puts back what it found, which by then is not there any more.
#[test]
fn ours_are_left_and_gone_on_with_out_of_order() {
    scope(|| {
        let make = |name: &'static str| {
            around(move || {
                let mut ours = Coroutine::named(name, move || {
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
                asks_in_vain();
            }
        }
        for foreign in &mut all {
            foreign.resume(());
            assert!(foreign.done());
            asks_in_vain();
        }
        drop(all);
        asks_in_vain();
        for _ in 0..4 {
            end_one(); // On the same stacks.
        }
    });
}

/// What an ended coroutine's guard puts back names the stack of another one, which waits for a
/// future meanwhile: that future must not be able to suspend it.
#[test]
fn a_stack_that_is_used_again_is_not_taken_for_the_one_before() {
    scope(|| {
        let (kept, theirs) = put(None::<Loop>);
        let mut first = Coroutine::new(move || {
            let mut foreign = around(|| is_ready(&mut Coroutine::new(leave)));
            foreign.resume(());
            *theirs.borrow_mut() = Some(Some(foreign));
        });
        is_ready(&mut first);
        let mut foreign = take(&kept).expect("it was made");
        let mut second = Coroutine::new(move || {
            let padding = [1_u8; 300]; // So that its frames are elsewhere than the first one's.
            let polled = wait(poll_fn(move |_| {
                foreign.resume(());
                assert!(foreign.done());
                asks_in_vain();
                Poll::Ready(std::hint::black_box(&padding).len())
            }));
            wait(pause());
            polled
        });
        assert!(poll(&mut second).is_pending());
        assert_eq!(poll(&mut second), Poll::Ready(300));
    });
}

/// Foreign ones that are dropped unwind ours within them, wherever these are.
#[test]
fn a_dropped_foreign_one_unwinds_ours() {
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
                let mut ours = Coroutine::new(move || {
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
        asks_in_vain();
        end_one();
    });
}

/// A foreign coroutine may run a function on its creator's stack, which is ours then.
#[test]
fn on_the_stack_of_its_creator_it_is_its_creator() {
    scope(|| {
        let mut ours = Coroutine::new(|| {
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
