//! The contract of coroutines. Only tests with coroutines include this file, so that the others can
//! forbid `unsafe`.

use onrush::coroutine::Contract;

/// The contract of the handlers of all tests.
#[allow(unsafe_code)]
pub(crate) fn contract() -> Contract {
    // SAFETY: the handlers wait outside borrows of thread-locals and outside scopes, and pass no
    // closures that wait to libraries.
    unsafe { Contract::accept() }
}
