//! The tests of coroutines, in one binary: it is linked once. Tests that change their process, by
//! limits or signals, run themselves in a child process (`testing::child`).

// Coroutines polled by hand, and drivers.
mod common;

// Coroutines polled by hand.
mod coroutine;
// Coroutines of another crate around, inside and between ours.
mod foreign;
// Coroutines with sockets, files, threads and programs.
mod io;
// A stack that overflows ends the process and names the coroutine.
mod overflow;
// Coroutines that outlive thread-locals.
mod scope;
// Synchronisation between the coroutines of a worker.
mod sync;
// Wakers and destructors that call back or panic, of the runtime and of coroutines.
mod wakers;
