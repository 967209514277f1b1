//! Coroutines: code written as if it blocked, on a worker that goes on meanwhile.
//!
//! A [`Coroutine`] is a future that runs a plain function on a stack of its own. Where the function
//! [`wait`]s, for any future, the coroutine is suspended and the worker does something else. On
//! that stand modules named as those of `std`, so that a program written for threads is changed in
//! its `use` lines only: [`thread`], [`net`], [`sync`], [`fs`]; and [`run`], which runs it.
//!
//! ```
//! use onrush_rt::coroutine::net::{TcpListener, TcpStream};
//! use onrush_rt::coroutine::{self, Config, thread};
//! use std::io::{Read, Write};
//!
//! fn main_of_the_program() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let client = thread::spawn(move || {
//!         let mut answer = String::new();
//!         TcpStream::connect(address)?.read_to_string(&mut answer)?;
//!         std::io::Result::Ok(answer)
//!     });
//!     let (mut stream, _) = listener.accept()?;
//!     stream.write_all(b"hello")?;
//!     drop(stream);
//!     assert_eq!(client.join().unwrap()?, "hello");
//!     Ok(())
//! }
//!
//! coroutine::run(Config::default(), main_of_the_program).unwrap();
//! ```
//!
//! # Stacks
//! Each takes [`StackOptions::stack_bytes`] of address space and as much memory as it touches,
//! which is kept for the next coroutine. Below each is a page that must not be touched: a coroutine
//! that overflows ends the process, with a message that names it. So recursion needs a bound.
//!
//! # What a coroutine must not do
//! - Block: a call of `std` that sleeps, reads a socket or locks a contended lock holds up the
//!   whole worker. Nor compute for long.
//! - Hold what others of its worker need across a wait: the borrow of a `RefCell`, a lock of `std`.
//! - Panic in a destructor, or wait in one for what is not ready, while its stack is unwound: that
//!   ends the process, as a second panic does. (The calls here that give a `Result` give an error
//!   there instead, so that a `BufWriter` may be dropped.)
//!
//! # Scopes
//! A coroutine lives within a [`scope()`] of its thread, which [`run`] and the threads of a server
//! enter by themselves. One that is kept longer, in a `thread_local` say, is never unwound: its
//! stack is leaked, because what it refers to may be gone. Polling it panics.
//!
//! A program built with `panic = "abort"` cannot unwind, and so has no coroutines: starting one
//! fails there.
//!
//! # Dropping
//! A coroutine that is dropped while it waits is unwound: a panic, which no hook sees, runs from
//! there to its beginning, and everything on the stack is dropped. Code that catches it and goes on
//! is unwound again where it next waits. Locks of `std` that are held are poisoned.
//!
//! Modules, lowest first: `scope` · `memory` · `stack` · `overflow` · `switch` · `lock` ·
//! [`thread`] · [`mpsc`] · [`sync`] · `address` · `ports` · [`net`] · [`fs`] · `run`. Must not know
//! protocols.

mod address;
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
mod switch;
pub mod sync;
pub mod thread;

pub use address::Lookup;
pub use fs::File;
pub use mpsc::sync_channel as channel;
pub use net::{TcpListener, TcpStream};
pub use run::{Config, run};
pub use scope::scope;
pub use stack::{StackCounters, StackOptions};
pub use switch::{
    Coroutine, Unwinding, configure, counters, is_inside, is_unwinding, touched_bytes, try_wait,
    wait,
};
pub use sync::Mutex;
pub use thread::{JoinHandle, sleep, spawn, yield_now};
