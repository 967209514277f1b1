//! Onrush's runtime: one worker per core, each with its own driver, tasks, timers and buffers.
//!
//! A [`worker::Worker`] is turned by its owner and has no thread of its own, so a test may run many
//! workers on one thread, over [`driver::sim`] and with a clock of its own. Futures reach their
//! worker through a [`worker::WorkerContext`].
//!
//! Floors inside this crate, lowest first: `sys` · [`text`] · [`coop`] · [`buf`] ·
//! [`descriptors`] · [`fs`] · [`driver`] · [`environment`] · [`timer`] · [`durations`] · `job` ·
//! `wakers` · `thread_pool` · [`blocking`] · [`offload`] · `parker` · `mailbox` · `task` ·
//! [`executor`] · `sources` · [`worker`] · [`net`] · [`coroutine`]. This is the only crate with
//! `unsafe`, and all of it says why it is sound.

pub mod blocking;
pub mod buf;
pub mod coop;
pub mod coroutine;
pub mod descriptors;
pub mod driver;
pub mod durations;
pub mod environment;
pub mod executor;
pub mod fs;
mod job;
mod mailbox;
pub mod net;
pub mod offload;
mod parker;
mod sources;
mod sys;
mod task;
pub mod text;
mod thread_pool;
pub mod timer;
mod wakers;
pub mod worker;
