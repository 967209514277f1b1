//! Diagnosis: `tracing` events of the drivers, the worker and the engine on top of it.
//!
//! A subscriber is user code: it may panic, and it may call back. Most events occur where a cell is
//! borrowed. So [`diagnose!`](crate::diagnose) stores an event, and the worker emits the stored
//! events, in order, before it runs its tasks and at the end of each iteration of its event loop.
//! A disabled event costs a load and a comparison.

use crate::user::call;
use std::cell::{Cell, RefCell};

#[doc(hidden)]
pub use tracing;

type Event = Box<dyn FnOnce()>;

thread_local! {
    static IS_PENDING: Cell<bool> = const { Cell::new(false) };
    static EVENTS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

/// Stores a `tracing` event, which is emitted when no cell of the worker is borrowed. To be used on
/// the thread of a worker. The values of fields are evaluated at once, and only if the level is
/// enabled; they must be owned.
///
/// # Examples
/// ```
/// onrush_rt::diagnose!(DEBUG, connection = 7_u32, reason = "client"; "connection closed");
/// onrush_rt::diagnosis::flush();
/// ```
#[macro_export]
macro_rules! diagnose {
    ($level:ident, $($field:ident = $value:expr),+ ; $text:literal) => {
        if $crate::diagnosis::is_enabled($crate::diagnosis::tracing::Level::$level) {
            $(
                #[allow(clippy::redundant_locals)]
                let $field = $value;
            )+
            $crate::diagnosis::store(move || {
                $crate::diagnosis::tracing::event!(
                    $crate::diagnosis::tracing::Level::$level,
                    $($field),+,
                    $text
                );
            });
        }
    };
}

/// Whether some subscriber may want events of `level`: one load and one comparison.
#[inline(always)]
pub fn is_enabled(level: tracing::Level) -> bool {
    use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// Stores an event. See [`diagnose!`](crate::diagnose).
#[cold]
#[inline(never)]
pub fn store(event: impl FnOnce() + 'static) {
    // A thread whose locals are gone emits nothing more.
    let _ = EVENTS.try_with(|events| events.borrow_mut().push(Box::new(event)));
    IS_PENDING.set(true);
}

/// Emits the stored events of this thread. A panic of a subscriber costs that event.
///
/// To be called by code that turns no worker and uses [`diagnose!`](crate::diagnose); workers call
/// it by themselves.
#[inline(always)]
pub fn flush() {
    if IS_PENDING.get() {
        emit();
    }
}

#[cold]
#[inline(never)]
fn emit() {
    IS_PENDING.set(false);
    // What subscribers store meanwhile is emitted the next time: it must not go on for ever.
    let events = EVENTS.try_with(RefCell::take).unwrap_or_default();
    for event in events {
        call(event);
    }
}
