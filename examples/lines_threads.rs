//! A server of a line protocol: `lines_threads [PORT]` runs on threads, `lines_coroutines [PORT]`
//! on coroutines. Both have one source, `ported/lines.rs`. They differ only in their `use` lines
//! and in the call that runs the program.
//!
//! `nc 127.0.0.1 PORT`, then `SET name value`, `GET name`, `DEL name`, `KEYS`, `JOIN room`,
//! `SAY room text` and `QUIT`. `SAY` sends its text to all members of the room.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

#[path = "ported/lines.rs"]
mod lines;

fn main() -> io::Result<()> {
    lines::program()
}
