//! The thread of one worker, from its start to the end of its last connection.

use super::control::{Control, DRAINING, ENDING, RUNNING};
use super::socket_file::SocketFile;
use crate::engine::{Engine, EngineHandler, Settings, Transfer};
use crate::handler::Application;
use crate::panic_guard::{self, PanicGuard};
use crate::worker::WorkerHandle;
#[cfg(feature = "coroutine")]
use onrush_coroutine as stacks;
use onrush_rt::driver::{self, Choice, ListenSocket};
use onrush_rt::net::Closing;
use onrush_rt::worker::{Pools, Worker, pin_to, restore_affinity};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// A timer payload that identifies no connection. It only wakes the worker.
const WAKE_UP: u64 = u64::MAX >> 1;

/// How long the end of a worker waits for what is lasting. A container is killed a few seconds
/// after the drain timeout.
const FINISH_MS: u64 = 4_000;

/// What the thread of one worker needs.
pub(super) struct WorkerThread {
    pub(super) index: usize,
    pub(super) core: Option<usize>,
    pub(super) choice: Choice,
    pub(super) config: driver::Config,
    pub(super) settings: Settings,
    pub(super) sockets: Vec<ListenSocket>,
    /// The files are removed when the last worker has ended.
    pub(super) socket_files: Arc<Vec<SocketFile>>,
    /// For each of `sockets`, whether another process continues to listen on it.
    pub(super) shared: Arc<[bool]>,
    pub(super) pools: Pools,
    pub(super) application: Arc<dyn Application>,
    #[cfg(feature = "coroutine")]
    pub(super) stacks: stacks::StackOptions,
    pub(super) control: Arc<Control>,
}

impl WorkerThread {
    /// Like [`WorkerThread::run`], on the calling thread. Restores the CPU affinity of the thread
    /// afterwards.
    pub(super) fn run_here(self) -> io::Result<()> {
        let unpin = self.core.is_some().then(restore_affinity);
        let run = AssertUnwindSafe(|| self.run(|| {}));
        let result = catch_unwind(run).unwrap_or_else(|_| Err(panicked()));
        if let Some(unpin) = unpin {
            unpin();
        }
        result
    }

    /// Runs the worker until the server ends. Calls `ready` just before it accepts connections.
    pub(super) fn run(mut self, ready: impl FnOnce()) -> io::Result<()> {
        let _end_on_panic = EndOnPanic(self.control.clone());
        if let Some(core) = self.core
            && let Err(error) = pin_to(core)
        {
            tracing::warn!(core, %error, "a worker could not be pinned");
        }
        #[cfg(feature = "coroutine")]
        let result = {
            stacks::configure(&self.stacks);
            // The scope outlives the worker, so that coroutines which the worker drops are unwound.
            stacks::scope(|| self.serve(ready))
        };
        #[cfg(not(feature = "coroutine"))]
        let result = self.serve(ready);
        if result.is_err() {
            self.control.set(ENDING); // Without this worker the load would be uneven.
        }
        result
    }

    fn serve(&mut self, ready: impl FnOnce()) -> io::Result<()> {
        // The last reference to the handlers is dropped after the worker: destructors may panic.
        let _handlers;
        let mut worker = Worker::new(&self.choice, &self.config, self.pools.clone(), self.index)?;
        let handle = WorkerHandle::new(worker.context());
        onrush_rt::user::assert_unborrowed();
        let service = self.application.instantiate(&handle);
        _handlers = PanicGuard::new(service.clone());
        let engine = Engine::new(worker.context(), self.settings.clone(), service);
        let event_handler = EngineHandler(engine.clone());
        let _close_on_drop = CloseOnDrop(engine.clone());
        for socket in &self.sockets {
            engine.listen(duplicate(socket)?)?;
        }
        let notifier = worker.notifier();
        let (worker_set, own) = (self.settings.worker_set.clone(), self.index);
        worker_set.join(own, notifier.clone());
        let sockets = std::mem::take(&mut self.sockets);
        self.settings.watchdog.lend(own, sockets);
        let leave = LeaveOnDrop(self.settings.clone(), own);
        let _client_watch = engine.watch_clients(notifier.clone());
        self.control.join(notifier);
        ready();
        let mut generation = 0;
        while self.control.state() == RUNNING {
            if let Some(settings) = self.control.new_settings(&mut generation) {
                engine.set_settings(settings.to_engine());
            }
            worker.poll(&event_handler, true)?;
        }
        if self.control.is_handed_over() {
            self.socket_files.iter().for_each(SocketFile::keep);
        }
        if self.control.state() == DRAINING {
            self.drain(&mut worker, &event_handler)?;
            let late = leave.now();
            if !late.is_empty() {
                engine.accept_transfers(late);
                self.drain(&mut worker, &event_handler)?;
            }
            self.finish(&mut worker, &event_handler)?;
        }
        Ok(())
    }

    /// Closes the connections that are left, and polls the worker until what completes or keeps a
    /// change has ended ([`WorkerHandle::lasting`]).
    fn finish(&self, worker: &mut Worker, event_handler: &EngineHandler) -> io::Result<()> {
        if self.control.state() == ENDING {
            return Ok(());
        }
        event_handler.0.close_all();
        let end_ms = worker.context().now_ms().saturating_add(FINISH_MS);
        worker.context().schedule(end_ms, WAKE_UP);
        while worker.context().lasting_count() > 0
            && self.control.state() != ENDING
            && worker.context().now_ms() < end_ms
        {
            worker.poll(event_handler, true)?;
        }
        Ok(())
    }

    /// Polls the worker until no connection is open, the drain timeout has passed, or the state is
    /// [`ENDING`].
    fn drain(&mut self, worker: &mut Worker, event_handler: &EngineHandler) -> io::Result<()> {
        let engine = &event_handler.0;
        let mut outbox = self.control.outbox();
        engine.drain(outbox.clone());
        (self.sockets).extend(self.settings.watchdog.take_back(self.index));
        // New connections in the queue of a socket on which another process listens wait for it.
        let is_handed_over = self.control.is_handed_over();
        let sockets = self.sockets.iter().zip(self.shared.iter());
        let own = sockets.filter(|(_, shared)| !is_handed_over && !**shared);
        let mut closing = Closing::start(own.map(|(socket, _)| socket));
        let drain_timeout = self.control.settings().drain_timeout;
        let timeout_ms = u64::try_from(drain_timeout.as_millis()).ok();
        // `None`: there is no limit.
        let end_ms = timeout_ms.and_then(|ms| worker.context().now_ms().checked_add(ms));
        if let Some(end_ms) = end_ms {
            worker.context().schedule(end_ms, WAKE_UP);
        }
        // Other workers may still transfer connections to this one.
        let (worker_set, index) = (self.settings.worker_set.clone(), self.index);
        let expected = || worker_set.open(index);
        let mut next_check_ms = 0;
        loop {
            let now_ms = worker.context().now_ms();
            let waits = closing.as_mut().filter(|_| self.control.state() != ENDING);
            match waits.and_then(Closing::poll_handshakes) {
                None => {
                    closing = None;
                    engine.stop_accepting();
                    self.sockets.clear(); // A socket is closed with its last descriptor.
                }
                Some(pause) if now_ms >= next_check_ms => {
                    next_check_ms = now_ms + pause.as_millis() as u64 + 1;
                    worker.context().schedule(next_check_ms, WAKE_UP);
                }
                Some(_) => {}
            }
            if outbox.as_ref().is_some_and(|outbox| outbox.is_closed()) {
                engine.stop_passing();
                outbox = None;
            }
            let connected = engine.open_connections() > 0 || expected() > 0;
            let works = connected || worker.context().driver().is_listening();
            if !works || self.control.state() == ENDING {
                break;
            }
            if end_ms.is_some_and(|end_ms| now_ms >= end_ms) {
                let open = engine.open_connections();
                if open > 0 {
                    panic_guard::log(|| {
                        tracing::warn!(open, "the drain timeout ended connections");
                    });
                }
                break;
            }
            worker.poll(event_handler, true)?;
        }
        Ok(())
    }
}

/// The slot of a worker in the worker set. Dropping it gives the slot up, even after an error or a
/// panic, and closes its listening sockets and connections that were transferred too late.
struct LeaveOnDrop(Settings, usize);

impl LeaveOnDrop {
    fn now(&self) -> Vec<Transfer> {
        self.0.worker_set.leave(self.1)
    }
}

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        // A handle may outlive the server, and must not keep its sockets open.
        drop(self.0.watchdog.take_back(self.1));
        for transfer in self.now() {
            drop(transfer);
            self.0.release(); // The worker that accepted it has counted it.
        }
    }
}

/// Closes the connections of a worker when it ends, even with an error or a panic: they are counted
/// in a budget of descriptors that may outlive the server.
struct CloseOnDrop(Rc<Engine>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        panic_guard::catch(|| self.0.close_all());
    }
}

/// Ends the other workers if this one panics: because of a bug, or because the application panicked
/// when it was instantiated. Otherwise the server would not end.
struct EndOnPanic(Arc<Control>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(ENDING);
        }
    }
}

/// Duplicates a listening socket. The driver owns one descriptor; the thread keeps the other, so
/// that the port stays in use until all workers drain or have ended.
fn duplicate(socket: &ListenSocket) -> io::Result<ListenSocket> {
    match socket {
        ListenSocket::Os(fd) => Ok(ListenSocket::Os(fd.try_clone()?)),
        ListenSocket::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// The error of a worker that panicked, or whose application panicked when it was instantiated.
pub(super) fn panicked() -> io::Error {
    io::Error::other("a worker panicked")
}
