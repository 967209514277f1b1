//! What stands for `std::sync`: a mutex and channels between the coroutines of one worker.
//!
//! Nobody else can be at work while one of them is, so nothing here is atomic, and none of it can
//! be shared with other threads; `Arc` is an `Rc`. Must not know what is sent.
#![allow(unsafe_code)]

use super::lock::Lock;
use super::switch::{spend_operation, try_wait};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

pub use super::mpsc;
pub use std::rc::{Rc as Arc, Weak};
pub use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult, atomic};

/// A mutual exclusion of coroutines, as `std::sync::Mutex` is of threads: held across waits, and
/// given to those who want it in the order in which they came. A panic does not poison it: results
/// are `Ok`, and a [`LockResult`] only so that programs need not be changed.
///
/// Locking it twice in one coroutine waits for ever.
///
/// ```no_run
/// use onrush_rt::coroutine::{sync::{Arc, Mutex}, thread};
/// let count = Arc::new(Mutex::new(0));
/// let other = count.clone();
/// thread::spawn(move || *other.lock().unwrap() += 1).join().unwrap();
/// assert_eq!(*count.lock().unwrap(), 1);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    lock: Lock,
    /// Not `Send`: who waits is on this thread.
    _of_one_thread: PhantomData<Rc<()>>,
    value: UnsafeCell<T>,
}

impl<T> Mutex<T> {
    /// A free one.
    pub fn new(value: T) -> Mutex<T> {
        Mutex {
            lock: Lock::default(),
            _of_one_thread: PhantomData,
            value: UnsafeCell::new(value),
        }
    }

    /// The value; nobody else can have it.
    pub fn into_inner(self) -> LockResult<T> {
        Ok(self.value.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until nobody else has it. In a destructor, while the stack is unwound, it cannot wait,
    /// and takes it before those who do; for when somebody has it there is [`Mutex::try_lock`].
    ///
    /// # Panics
    /// When it would have to wait: outside a coroutine, and in such a destructor, which ends the
    /// process.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        spend_operation();
        if !self.lock.try_take()
            && try_wait(self.lock.take()).is_err()
            && !self.lock.try_take_first()
        {
            panic!("a destructor waits for a mutex while its coroutine's stack is unwound");
        }
        Ok(MutexGuard(self))
    }

    /// Takes it if nobody has it or waits for it.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.lock.try_take() {
            true => Ok(MutexGuard(self)),
            false => Err(TryLockError::WouldBlock),
        }
    }

    /// The value; nobody else can have it.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.value.get_mut())
    }

    /// Never.
    pub fn is_poisoned(&self) -> bool {
        false
    }

    /// Does nothing.
    pub fn clear_poison(&self) {}
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mutex");
        match self.try_lock() {
            Ok(guard) => shown.field("data", &&*guard).finish(),
            Err(_) => shown.field("data", &format_args!("<locked>")).finish(),
        }
    }
}

/// The value of a [`Mutex`], for as long as this lives.
#[must_use = "it is free again when this is dropped"]
pub struct MutexGuard<'m, T: ?Sized>(&'m Mutex<T>);

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, which lends the value as it is lent itself; and
        // neither leaves the thread.
        unsafe { &*self.0.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.lock.release();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
