//! The counterpart of `std::sync`: a mutex and channels between the coroutines of one worker.
//!
//! The coroutines of a worker run one at a time, so nothing here is atomic or can be shared with
//! other threads; `Arc` is an `Rc`.
#![allow(unsafe_code)]

use super::lock::Lock;
use super::suspend::{spend_operation, try_wait};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

pub use super::mpsc;
pub use std::rc::{Rc as Arc, Weak};
pub use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult, atomic};

/// A mutex between coroutines, as `std::sync::Mutex` is between threads. It may be held across
/// waits, and waiters get it in order of arrival. A panic does not poison it: results are always
/// `Ok`, in a [`LockResult`] only for compatibility with `std`.
///
/// Locking it twice in one coroutine waits for ever.
///
/// ```no_run
/// use onrush_coroutine::{sync::{Arc, Mutex}, thread};
/// let count = Arc::new(Mutex::new(0));
/// let other = count.clone();
/// thread::spawn(move || *other.lock().unwrap() += 1).join().unwrap();
/// assert_eq!(*count.lock().unwrap(), 1);
/// ```
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    lock: Lock,
    /// Not `Send`: the waiters are on this thread.
    _of_one_thread: PhantomData<Rc<()>>,
    value: UnsafeCell<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex {
            lock: Lock::default(),
            _of_one_thread: PhantomData,
            value: UnsafeCell::new(value),
        }
    }

    /// The value. No locking is needed, because the mutex is owned.
    pub fn into_inner(self) -> LockResult<T> {
        Ok(self.value.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the mutex and locks it. In a destructor, while the stack is unwound, it cannot
    /// wait, and takes a free mutex before the waiters; use [`Mutex::try_lock`] if it may be held
    /// there.
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

    /// Locks the mutex if it is free and nothing waits for it.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.lock.try_take() {
            true => Ok(MutexGuard(self)),
            false => Err(TryLockError::WouldBlock),
        }
    }

    /// The value. No locking is needed, because the mutex is borrowed mutably.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.value.get_mut())
    }

    /// Always `false`.
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

/// Access to the value of a [`Mutex`]; dropping it unlocks the mutex.
#[must_use = "it is free again when this is dropped"]
pub struct MutexGuard<'m, T: ?Sized>(&'m Mutex<T>);

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, which lends the value as it is borrowed itself; and
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
