//! Coroutines: code in blocking style that does not block its worker.
//!
//! A [`Coroutine`] is a future that runs a plain function on its own stack. Where the function
//! [`wait`]s for a future, the coroutine is suspended and the worker does something else. Modules
//! named like those of `std` build on that, so a program written for threads changes only its `use`
//! lines and the call of its main function: [`thread`], [`net`], [`sync`], [`fs`], and [`run`].
//!
//! ```
//! use onrush_coroutine::net::{TcpListener, TcpStream};
//! use onrush_coroutine::{self as coroutine, Config, Contract, thread};
//! use std::io::{Read, Write};
//!
//! fn main_of_the_program() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let client = thread::spawn(move || {
//!         let mut text = String::new();
//!         TcpStream::connect(address)?.read_to_string(&mut text)?;
//!         std::io::Result::Ok(text)
//!     });
//!     let (mut stream, _) = listener.accept()?;
//!     stream.write_all(b"hello")?;
//!     drop(stream);
//!     assert_eq!(client.join().unwrap()?, "hello");
//!     Ok(())
//! }
//!
//! // SAFETY: the program waits in no closure that it passes to a thread-local or to a scope.
//! let contract = unsafe { Contract::accept() };
//! coroutine::run(contract, Config::default(), main_of_the_program).unwrap();
//! ```
//!
//! # The contract
//! Creating a coroutine requires a [`Contract`], which only `unsafe` code can accept: the coroutine
//! does not wait within a borrow of a thread-local, nor within a call of a library that relies on
//! returning before its thread does something else. [`Contract::accept`] lists the cases with their
//! reasons. Almost all code fulfils it. [`thread::spawn`] needs no contract of its own: only a
//! coroutine can call it, and the contract of that one covers it.
//!
//! # Stacks
//! Each stack takes [`StackOptions::stack_bytes`] of address space and as much memory as it
//! touches, which is kept for the next coroutine. Below each stack is a guard page: a coroutine
//! that overflows its stack ends the process, with a message that names it. So recursion needs a
//! bound.
//!
//! # What a coroutine must not do
//! - Block: a `std` call that sleeps, reads a socket or waits for a contended lock blocks the whole
//!   worker. A long computation does, too.
//! - Hold, across a wait, something that other tasks of its worker need: the borrow of a
//!   `RefCell`, or a lock of `std`.
//! - Panic in a destructor while its stack is unwound, or wait there for a future that is not
//!   ready: that ends the process, as a second panic does. (The functions here that return a
//!   `Result` return an error there instead, so that a `BufWriter` may be dropped.)
//!
//! # Scopes
//! A coroutine lives within a [`scope()`] of its thread. [`run`] and the threads of a server enter
//! one by themselves. A coroutine that outlives it, in a `thread_local` for example, is never
//! unwound: when it is dropped, its stack is leaked, because the stack may refer to destroyed
//! values. Polling it panics.
//!
//! A program built with `panic = "abort"` cannot unwind, and so has no coroutines: creating one
//! fails there.
//!
//! # Dropping
//! A coroutine that is dropped while it waits is unwound: a panic, for which the panic hook is not
//! called, runs from there to its beginning and drops everything on the stack. Code that catches
//! the panic and continues is unwound again at its next wait. Held `std` locks are poisoned.
//!
//! Modules, lowest first: `contract` · `scope` · `memory` · `stack` · `overflow` · `frame` ·
//! `suspend` · `thread_stacks` · `switch` · `lock` · [`thread`] · [`mpsc`] · [`sync`] · `address` ·
//! `ports` · [`net`] · [`fs`] · `run`. They do not depend on protocols.

mod address;
mod contract;
mod frame;
pub mod fs;
mod lock;
mod memory;
pub mod mpsc;
pub mod net;
mod overflow;
mod ports;
mod run;
mod scope;
mod stack;
mod suspend;
mod switch;
pub mod sync;
pub mod thread;
mod thread_stacks;

pub use address::Lookup;
pub use contract::Contract;
pub use fs::File;
pub use mpsc::sync_channel as channel;
pub use net::{TcpListener, TcpStream};
pub use run::{Config, run};
pub use scope::scope;
pub use stack::{StackCounters, StackOptions};
pub use suspend::{Unwinding, is_inside, is_unwinding, try_wait, wait};
pub use switch::Coroutine;
pub use sync::Mutex;
pub use thread::{JoinHandle, sleep, spawn, yield_now};
pub use thread_stacks::{configure, counters, touched_bytes};
