//! Onrush's runtime: one worker per core, each with its own driver, tasks, timers and buffers.
//!
//! The owner of a [`worker::Worker`] polls it; a worker has no thread of its own. A test can
//! therefore run many workers on one thread, over [`driver::sim`] and with a simulated clock.
//! Futures access their worker through a [`worker::WorkerContext`].
//!
//! Layers inside this crate, lowest first: [`sys`] · [`text`] · [`region`] · [`crc64`] · [`user`] ·
//! `job` · [`diagnosis`] · [`coop`] · [`buf`] · [`descriptors`] · `thread_pool` · [`blocking`] ·
//! [`fs`] · [`driver`] · [`environment`] · [`timer`] · [`durations`] · [`wakers`] · [`offload`] ·
//! `parker` · `mailbox` · `task`, `task_slot` · [`executor`] · `sources` · [`worker`] · [`net`].
//! This crate and `onrush-coroutine`, which was a part of it, are the only ones with `unsafe` code;
//! each block states why it is sound.

#[cfg(not(target_os = "linux"))]
compile_error!("Onrush runs on Linux only: it is built on io_uring and epoll.");

pub mod blocking;
pub mod buf;
pub mod coop;
pub mod crc64;
pub mod descriptors;
pub mod diagnosis;
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
pub mod region;
mod sources;
pub mod sys;
mod task;
mod task_slot;
pub mod text;
mod thread_pool;
pub mod timer;
pub mod user;
pub mod wakers;
pub mod worker;
