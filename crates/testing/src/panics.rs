//! Panics on purpose, whose messages would fill the output.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

/// Whether a panic is intended.
type Intended = fn(&PanicHookInfo<'_>) -> bool;

thread_local! {
    static INTENDED: Cell<Option<Intended>> = const { Cell::new(None) };
}

/// Panics of this thread are silent while this exists, if they are intended.
pub struct Silence(PhantomData<*const ()>);

/// Silences the panics of this thread for which `intended` is true. Those of other threads and
/// other panics are printed. The hook is installed once for the whole process.
pub fn silence(intended: Intended) -> Silence {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // The thread-local may be gone already.
            let intended = INTENDED.try_with(Cell::get).ok().flatten();
            if !intended.is_some_and(|intended| intended(info)) {
                earlier(info);
            }
        }));
    });
    INTENDED.set(Some(intended));
    Silence(PhantomData)
}

impl Drop for Silence {
    fn drop(&mut self) {
        INTENDED.set(None);
    }
}
