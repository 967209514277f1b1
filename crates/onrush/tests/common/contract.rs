//! The contract of coroutines.

use onrush::coroutine::Contract;

/// The contract of the handlers of all tests.
#[allow(unsafe_code)]
pub fn contract() -> Contract {
    // SAFETY: the handlers wait outside borrows of thread-locals and outside scopes, and pass no
    // closures that wait to libraries.
    unsafe { Contract::accept() }
}
