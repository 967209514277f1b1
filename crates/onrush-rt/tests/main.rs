//! The tests of the runtime, in one binary: it is linked once. Tests that change their process, by
//! filters, limits or signals, run themselves in a child process (`common::in_child`).

// Drivers, connected pairs and watchdogs.
mod common;

// Listening and accepting, and its failures.
mod accept;
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
// Tasks, wakes from other threads, and the end of a worker.
mod worker;
