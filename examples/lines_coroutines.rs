//! A server of a line protocol: `lines_threads [PORT]` runs on threads, `lines_coroutines [PORT]`
//! on coroutines. Both have one source, `ported/lines.rs`. They differ only in their `use` lines
//! and in the call that runs the program.
//!
//! `nc 127.0.0.1 PORT`, then `SET name value`, `GET name`, `DEL name`, `KEYS`, `JOIN room`,
//! `SAY room text` and `QUIT`. `SAY` sends its text to all members of the room.

use onrush::coroutine::mpsc::{self, Receiver, SyncSender};
use onrush::coroutine::net::{Shutdown, TcpListener, TcpStream};
use onrush::coroutine::sync::{Arc, Mutex};
use onrush::coroutine::{self, Config, Contract, thread};
use std::io;

#[path = "ported/lines.rs"]
mod lines;

fn main() -> io::Result<()> {
    // SAFETY: the program passes no closure that waits to a thread-local, a scope or a library.
    #[allow(unsafe_code)]
    let contract = unsafe { Contract::accept() };
    coroutine::run(contract, Config::from_env()?, lines::program)
}
