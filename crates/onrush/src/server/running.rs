//! A running server: its threads.

use super::control::Control;
use super::handle::Handle;
use super::signals::EndBySignal;
use super::worker_thread::{WorkerThread, panicked};
use crate::worker::WorkerHandle;
use onrush_rt::driver::Choice;
use onrush_rt::net::Address;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// A running server. Dropping this value does not end the server.
///
/// # Examples
/// ```no_run
/// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
/// use onrush::Server;
///
/// let running = Server::bind("127.0.0.1:0").workers(2).start(hello)?;
/// println!("listening on {}", running.address());
/// println!("{}: {}", running.driver().name(), running.driver().reason());
/// assert_eq!(running.workers(), 2);
/// running.handle().shutdown();
/// running.wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    driver: Choice,
    handle: Handle,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The signals that end the server, until it has ended.
    signals: Option<EndBySignal>,
}

impl Running {
    /// A server without threads.
    pub(super) fn new(addresses: Vec<Address>, driver: Choice, control: Arc<Control>) -> Running {
        Running {
            addresses,
            driver,
            handle: Handle::new(control),
            threads: Vec::new(),
            signals: None,
        }
    }

    /// Lets `signals` end the server. If that fails, ends the server and waits for it.
    pub(super) fn end_by(&mut self, mut signals: EndBySignal) -> io::Result<()> {
        if let Err(error) = signals.ends(self.handle()) {
            self.handle.shutdown_now();
            self.join()?;
            return Err(error);
        }
        self.signals = Some(signals);
        Ok(())
    }

    /// Starts the threads and waits until the workers are ready. If one fails, ends the others,
    /// waits for them, and returns its error.
    pub(super) fn spawn(&mut self, threads: Vec<WorkerThread>) -> io::Result<()> {
        let (ready, readiness) = mpsc::channel();
        for worker in threads {
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("onrush-{}", worker.index));
            let ready = move || {
                let _ = ready.send(()); // The receiver is gone if another worker has failed.
            };
            match thread.spawn(move || worker.run(ready)) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    self.handle.shutdown_now();
                    self.join()?;
                    return Err(error);
                }
            }
        }
        drop(ready);
        for _ in 0..self.threads.len() {
            // All senders are gone: a worker has ended before it was ready.
            if readiness.recv().is_err() {
                self.handle.shutdown_now();
                self.join()?;
                return Err(io::Error::other("a worker ended at once"));
            }
        }
        Ok(())
    }

    /// The address of [`Server::bind`](crate::Server::bind), with the actual port if port 0 was
    /// requested. `unix:inherited` stands for a socket without an address.
    pub fn address(&self) -> &Address {
        &self.addresses[0]
    }

    /// All addresses, in the order in which they were added.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The driver, and the reason for its choice.
    pub fn driver(&self) -> &Choice {
        &self.driver
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// A handle that ends the server.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until all workers have ended. If a worker fails, the others are ended, too, and the
    /// first error is returned. In a handler this fails with `WouldBlock`, because the call would
    /// block its worker; the server continues.
    pub fn wait(mut self) -> io::Result<()> {
        not_on_a_worker()?;
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(panicked()));
            if ended.is_err() && result.is_ok() {
                result = ended;
                self.handle.shutdown_now();
            }
        }
        result
    }
}

/// Fails on the thread of a worker: waiting for a server there would block the worker.
pub(super) fn not_on_a_worker() -> io::Result<()> {
    match WorkerHandle::current() {
        None => Ok(()),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "a handler cannot wait for a server: that would block its worker",
        )),
    }
}
