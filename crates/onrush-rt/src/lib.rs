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

#[cfg(target_os = "linux")]
pub mod blocking;
#[cfg(target_os = "linux")]
pub mod buf;
#[cfg(target_os = "linux")]
pub mod coop;
#[cfg(target_os = "linux")]
pub mod crc64;
#[cfg(target_os = "linux")]
pub mod descriptors;
#[cfg(target_os = "linux")]
pub mod diagnosis;
#[cfg(target_os = "linux")]
pub mod driver;
#[cfg(target_os = "linux")]
pub mod durations;
#[cfg(target_os = "linux")]
pub mod environment;
#[cfg(target_os = "linux")]
pub mod executor;
#[cfg(target_os = "linux")]
pub mod fs;
#[cfg(target_os = "linux")]
mod job;
#[cfg(target_os = "linux")]
mod mailbox;
#[cfg(target_os = "linux")]
pub mod net;
#[cfg(target_os = "linux")]
pub mod offload;
#[cfg(target_os = "linux")]
mod parker;
#[cfg(target_os = "linux")]
pub mod region;
#[cfg(target_os = "linux")]
mod sources;
#[cfg(target_os = "linux")]
pub mod sys;
#[cfg(target_os = "linux")]
mod task;
#[cfg(target_os = "linux")]
mod task_slot;
#[cfg(target_os = "linux")]
pub mod text;
#[cfg(target_os = "linux")]
mod thread_pool;
#[cfg(target_os = "linux")]
pub mod timer;
#[cfg(target_os = "linux")]
pub mod user;
#[cfg(target_os = "linux")]
pub mod wakers;
#[cfg(target_os = "linux")]
pub mod worker;
