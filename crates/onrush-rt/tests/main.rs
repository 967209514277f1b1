//! The tests of the runtime, in one binary: it is linked once. Tests that change their process, by
//! filters, limits or signals, run themselves in a child process (`common::in_child`).

// Drivers, connected pairs, watchdogs, and coroutines polled by hand.
mod common;

// Listening and accepting, and its failures.
mod accept;
// Coroutines polled by hand.
mod coroutine;
// Coroutines of another crate around, inside and between ours.
mod coroutine_foreign;
// Coroutines with sockets, files, threads and programs.
mod coroutine_io;
// A stack that overflows ends the process and names the coroutine.
mod coroutine_overflow;
// Coroutines that outlive thread-locals.
mod coroutine_scope;
// Synchronisation between the coroutines of a worker.
mod coroutine_sync;
// Panics in code that a worker calls.
mod panics;
// Buffers, queue entries or memory run out.
mod pressure;
// The driver that is chosen if io_uring is refused.
mod probe;
// Both sides send and receive at the same time; no byte is lost.
mod roundtrip;
// A seed determines the run of the simulated network.
mod sim;
// Bytes, ends and resets of streams on each driver.
mod streams;
// No wake of a reused task slot is lost.
mod task_slot;
// Wakers and destructors that call back or panic.
mod wakers;
// Tasks, wakes from other threads, and the end of a worker.
mod worker;
