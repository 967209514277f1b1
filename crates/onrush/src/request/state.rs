//! The states that a router gives to its handlers.

use super::Request;
use std::any::type_name;
use std::sync::Arc;

/// A state, as an extension of requests.
pub(crate) enum RouterState<T> {
    /// All workers have it.
    Shared(Arc<T>),
    /// One worker has it.
    Own(T),
}

impl Request {
    /// The state of type `T` of the router: the value of
    /// [`Router::with_state`](crate::Router::with_state), or the one that this worker has made by
    /// [`Router::with_worker_state`](crate::Router::with_worker_state).
    ///
    /// The reference borrows the request. To use the state while the body is read, clone what is
    /// needed first, such as an `Arc` in it.
    ///
    /// # Panics
    /// If the router has no state of this type: a mistake in the program. The client gets 500.
    #[track_caller]
    pub fn state<T: 'static>(&self) -> &T {
        match self.extension::<RouterState<T>>() {
            Some(RouterState::Shared(state)) => state,
            Some(RouterState::Own(state)) => state,
            None => panic!(
                "no state of type {0}: add `Router::with_state` with a value of it",
                type_name::<T>()
            ),
        }
    }
}
