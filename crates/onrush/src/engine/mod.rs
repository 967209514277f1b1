//! One worker's half of the server: its connections, from accept to close.
//!
//! Events of the driver come in through [`EventHandler`]; requests go to the application. No borrow
//! of the engine's cells is held while user code runs, because user code calls back in (reading a
//! body, dropping a request), and dropping a task is running user code as well.
//!
//! Modules, lowest first: `rate_meter` (transfer rates) · `connection` (what is kept) · `deadline`
//! (time limits) · `access` (the access log) · `send` (bytes out) · `reject` (requests that break a
//! rule) · `request_body` (bytes of bodies in) · `pressure` (when receive memory is short) ·
//! `respond` (answers) · `pending` (answers that take their time) · `receive` (requests) ·
//! `migration` (connections from and to other workers) · `admission` (which new ones are served) ·
//! `rebalance` (which of them go) · `stall` (workers that are blocked). Must not know how workers
//! are made.

mod access;
mod admission;
mod connection;
mod deadline;
mod migration;
mod pending;
mod pressure;
mod rate_meter;
mod rebalance;
mod receive;
mod reject;
mod request_body;
mod respond;
mod send;
mod stall;

use crate::handler::Service;
use crate::host::ConnId;
use crate::log::{AccessLog, LogQueue};
use crate::metrics::{CloseReason, Counter, Counters, Kind as _, Measured, Metrics, Recorder};
use crate::panic_guard;
use crate::request::RequestPool;
use crate::response::Response;
use crate::watchdog::Watchdog;
use crate::worker::WorkerHandle;
use crate::worker_set::WorkerSet;
use admission::IdleOrder;
use connection::{Conn, Conns, Phase};
pub(crate) use migration::Transfer;
use onrush_proto::limits::Limits;
use onrush_proto::response::HeadCache;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::diagnose;
use onrush_rt::driver::{Event, ListenSocket, ListenerId, Socket};
use onrush_rt::executor::TaskSlot;
use onrush_rt::user;
use onrush_rt::worker::{Blocked, EventHandler, WorkerContext};
use rebalance::RebalanceState;
pub(crate) use send::UNSENT_BYTES_MAX;
use stall::StallReports;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Connections over the cap that a worker keeps a moment to read so, at most; those beyond are
/// closed at once, which may come to them as a reset.
pub(crate) const OVER_LIMIT_MAX: usize = 64;
/// As many may always be kept: the next one may come before a closed one is noticed.
pub(crate) const OVER_LIMIT_MIN: usize = 4;
/// Input of each connection that is served after a drain has begun, in bytes, beyond what is known
/// to have been there. The driver may hold bytes that it has not reported, and a request may be on
/// its way.
const DRAIN_BYTES: u64 = 64 * 1024;

/// How many requests input of so many bytes may hold: the shortest is `GET / HTTP/1.0` and two
/// line ends.
fn requests_within(bytes: u64) -> u64 {
    bytes / 18 + 1
}

/// What an engine is told by the server's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    /// Open connections of all workers at most, and now.
    pub(crate) connections_max: usize,
    pub(crate) connections: Arc<AtomicUsize>,
    /// Counts them too, with other descriptors of the process.
    pub(crate) descriptors: Descriptors,
    /// See [`OVER_LIMIT_MAX`]. Fewer where connections are few: they take descriptors too.
    pub(crate) over_limit_max: usize,
    /// When it was last told that accepting pauses, in seconds of the epoch; by any worker.
    pub(crate) accept_warned_s: Arc<AtomicU64>,
    pub(crate) access_log: AccessLog,
    pub(crate) metrics: Option<Metrics>,
    /// The workers of this server.
    pub(crate) worker_set: Arc<WorkerSet<Transfer>>,
    /// How they notice that one of them is blocked.
    pub(crate) watchdog: Arc<Watchdog>,
    /// Whether a worker that is busier than others passes live connections to them.
    pub(crate) rebalance: bool,
}

impl Settings {
    /// Gives up a place under the cap.
    pub(crate) fn release(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        self.descriptors.close_connection();
    }
}

/// See the module's description.
pub(crate) struct Engine {
    context: WorkerContext,
    handle: WorkerHandle,
    settings: Settings,
    service: Rc<dyn Service>,
    conns: RefCell<Conns>,
    /// Parts of requests that are over.
    request_pool: Rc<RequestPool>,
    /// Answers rendered in the present call, before they are sent. Taken while in use.
    out: Cell<Vec<u8>>,
    /// The second that `date` was rendered for.
    date_s: Cell<u64>,
    date: Cell<[u8; 29]>,
    head_cache: RefCell<HeadCache>,
    /// Where discarded bytes go that the kernel cannot drop by itself.
    discard_buffer: RefCell<Vec<u8>>,
    listeners: RefCell<Vec<ListenerId>>,
    draining: Cell<bool>,
    /// Requests of each connection that may still be answered while draining: as many as the input
    /// may hold that had arrived before. See [`DRAIN_BYTES`].
    drain_requests: RefCell<HashMap<ConnId, u64>>,
    /// Receive memory is short, and what is not needed is not received. See [`pressure`].
    memory_short: Cell<bool>,
    /// Rendered responses that clients do not take, in bytes; counted by [`Conns`].
    unsent_bytes: Rc<Cell<usize>>,
    /// Connections over the cap that linger.
    over_limit: Cell<usize>,
    idle_order: IdleOrder,
    counters: Arc<Counters>,
    /// Exchanges to be logged, if any are.
    log: Option<Rc<LogQueue>>,
    /// What requests are measured by, if they are.
    recorder: Option<Recorder>,
    /// Handlers that were not ready at once and have not answered yet.
    waiting: Cell<usize>,
    /// So many of them may keep the whole block in which their request arrived.
    waiting_with_blocks_max: usize,
    /// The task of the next handler that has to wait.
    task_slot: RefCell<TaskSlot>,
    /// The request that is being started, until it is answered or waits for something.
    measuring: RefCell<Option<Measured>>,
    rebalance_state: RebalanceState,
    stalls: StallReports,
}

#[inline]
fn count(counter: &Counter) {
    counter.add(1);
}

impl Engine {
    /// An engine on the worker of `context`, serving `service`.
    pub(crate) fn new(
        context: &WorkerContext,
        settings: Settings,
        service: Rc<dyn Service>,
    ) -> Rc<Engine> {
        let counters = Arc::<Counters>::default();
        let recorder = (settings.metrics.as_ref()).map(|metrics| {
            let busy = settings.worker_set.busy(context.index());
            metrics.worker(context, &counters, busy)
        });
        let log = match settings.access_log {
            AccessLog::Off => None,
            AccessLog::On => {
                let log = Rc::<LogQueue>::default();
                context.spawn(log.clone().run()).detach();
                Some(log)
            }
        };
        let conns = Conns::default();
        let unsent_bytes = conns.unsent_bytes().clone();
        let engine = Rc::new(Engine {
            context: context.clone(),
            handle: WorkerHandle::new(context),
            settings,
            service,
            conns: RefCell::new(conns),
            request_pool: Rc::default(),
            out: Cell::default(),
            date_s: Cell::new(u64::MAX),
            date: Cell::new([0; 29]),
            head_cache: RefCell::default(),
            discard_buffer: RefCell::default(),
            listeners: RefCell::default(),
            draining: Cell::new(false),
            drain_requests: RefCell::default(),
            memory_short: Cell::new(false),
            unsent_bytes,
            over_limit: Cell::new(0),
            idle_order: IdleOrder::default(),
            counters,
            log,
            recorder,
            waiting: Cell::new(0),
            waiting_with_blocks_max: pressure::waiting_with_blocks_max(context.pool()),
            task_slot: RefCell::new(context.task_slot()),
            measuring: RefCell::default(),
            rebalance_state: RebalanceState::default(),
            stalls: StallReports::default(),
        });
        let weak = Rc::downgrade(&engine);
        context.check_before_user_code(move || {
            (weak.upgrade()).is_none_or(|engine| engine.conns.try_borrow_mut().is_ok())
        });
        engine
    }

    /// What handlers get of this worker.
    pub(crate) fn handle(&self) -> &WorkerHandle {
        &self.handle
    }

    /// What this engine has counted.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections open now.
    pub(crate) fn open_connections(&self) -> usize {
        self.conns.borrow().open()
    }

    /// Connections that have their place here, or are on their way here.
    pub(crate) fn placed(&self) -> usize {
        self.settings.worker_set.open(self.context.index())
    }

    /// Borrows what no user code may be called with.
    #[cfg(all(test, debug_assertions))]
    pub(crate) fn hold_connections(&self) -> impl Sized + use<'_> {
        self.conns.borrow_mut()
    }

    fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Starts accepting from a listening socket.
    pub(crate) fn listen(&self, socket: ListenSocket) -> io::Result<()> {
        let listener = self.context.driver().listen(socket)?;
        self.listeners.borrow_mut().push(listener);
        Ok(())
    }

    /// Closes the listeners, after all connections in their queues have been accepted.
    pub(crate) fn stop_accepting(&self) {
        for listener in self.listeners.take() {
            self.context.driver().unlisten(listener);
        }
    }

    /// Lets every request in flight be answered, and those that were pipelined behind it; the last
    /// response says `Connection: close` (RFC 9112, section 9.6). Closes each connection as it
    /// becomes idle. See [`Engine::stop_accepting`].
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.settings.worker_set.drain(); // The others are about to drain, too.
        // A request may be on its way on a connection that looks idle: it gets a moment.
        let soon = self.context.now_ms() + u64::from(deadline::DRAIN_IDLE_MS);
        let ids = self.conns.borrow().ids();
        for id in ids {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { continue };
            let queued = conn.active.as_ref().map_or(0, |active| active.input_bytes);
            let pending = queued as u64 + self.context.driver().unread_bytes(conn.stream);
            self.note_drain(id, pending);
            if pending == 0 && matches!(conn.phase, Phase::Busy | Phase::Flushing) {
                conn.machine.close_after_next(); // Its response may have begun.
            }
            if conn.phase == Phase::Ready && queued == 0 {
                conn.in_head = false; // A head that begins now has its whole time.
                self.set_deadline(id, conn, conn.deadline_ms.min(soon));
            }
        }
    }

    /// Bounds what a connection is still answered while draining. `bytes`: of input that is known
    /// to have arrived.
    fn note_drain(&self, id: ConnId, bytes: u64) {
        let requests = requests_within(bytes + DRAIN_BYTES);
        self.drain_requests.borrow_mut().insert(id, requests);
    }

    /// Closes everything at once.
    pub(crate) fn close_all(&self) {
        self.request_pool.close();
        let ids = self.conns.borrow().ids();
        for id in ids {
            panic_guard::catch(|| self.close(id, CloseReason::Stopped));
        }
        if let Some(log) = &self.log {
            log.write(); // No task runs any more.
        }
    }

    /// Begins to serve a new connection. Its places, under the cap and in the crew, are taken.
    fn open_connection(self: &Rc<Self>, socket: Socket) {
        count(&self.counters.placed);
        let Some(id) = self.attach(socket) else {
            return;
        };
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else { return };
        self.context.driver().receive(conn.stream);
        // A new connection has as long for its first head as a started head has.
        let limit_ms = match self.draining.get() {
            true => deadline::DRAIN_IDLE_MS,
            false => {
                conn.in_head = true;
                self.limits().head_timeout_ms
            }
        };
        self.set_limit(id, conn, limit_ms);
    }

    /// Makes an entry for a socket, receiving off. Gives its places up when that cannot be.
    fn attach(&self, socket: Socket) -> Option<ConnId> {
        let id = self.conns.borrow_mut().reserve();
        let attached = self.context.driver().attach(socket, id.token());
        match attached {
            Ok(stream) => {
                self.conns.borrow_mut().insert(id, Conn::new(stream));
                diagnose!(DEBUG, worker = self.context.index(), connection = id.token();
                    "connection opened");
                Some(id)
            }
            Err(error) => {
                panic_guard::log(|| tracing::warn!(%error, "a connection could not be taken over"));
                self.conns.borrow_mut().release(id);
                self.record_close(CloseReason::Exhausted);
                None
            }
        }
    }

    /// Changes what a connection is doing.
    fn set_phase(&self, id: ConnId, conn: &mut Conn, phase: Phase) {
        let before = std::mem::replace(&mut conn.phase, phase);
        if before != phase {
            diagnose!(TRACE, connection = id.token(), from = before.name(), to = phase.name();
                "connection state changed");
        }
    }

    /// A connection that had its places is no more.
    fn record_close(&self, ending: CloseReason) {
        self.counters.done.count(ending);
        self.settings.release();
        self.settings.worker_set.release(self.context.index());
    }

    /// Closes a connection and cancels what works for it.
    fn close(&self, id: ConnId, ending: CloseReason) {
        let conn = self.conns.borrow_mut().remove(id);
        let Some(mut conn) = conn else { return };
        diagnose!(DEBUG, worker = self.context.index(), connection = id.token(),
            reason = ending.name(), phase = conn.phase.name(); "connection closed");
        self.context.driver().close(conn.stream);
        if let Some(timer) = conn.timer {
            self.context.unschedule(timer);
        }
        if conn.over_limit {
            self.counters.done.count(CloseReason::Refused);
            self.over_limit.set(self.over_limit.get() - 1);
        } else {
            self.record_close(ending);
        }
        if self.log.is_some() {
            self.log_closed(&mut conn, ending);
        }
        let active = conn.active.as_mut();
        let (reader, measured) = match active {
            Some(active) => (active.reader.take(), active.measured.take()),
            None => (None, None),
        };
        if let Some((recorder, measured)) = self.recorder.as_ref().zip(measured) {
            recorder.abort(&measured);
        }
        drop(conn);
        if let Some(reader) = reader {
            user::wake(reader); // A task of the user's that reads the body must not wait for ever.
        }
    }

    /// Closes a connection so that the peer cannot take what it got for whole.
    fn abort(&self, id: ConnId, ending: CloseReason) {
        let stream = self.conns.borrow_mut().get(id).map(|conn| conn.stream);
        if let Some(stream) = stream {
            self.context.driver().reset(stream);
        }
        self.close(id, ending);
    }

    /// The date of this second (RFC 9110 §6.6.1).
    #[inline]
    fn date(&self) -> [u8; 29] {
        let now = self.context.unix_seconds();
        if self.date_s.replace(now) != now {
            self.date.set(onrush_proto::date::format(now));
        }
        self.date.get()
    }

    fn peer_of(&self, id: ConnId) -> Option<SocketAddr> {
        self.peer_of_conn(self.conns.borrow_mut().get(id)?)
    }

    fn peer_of_conn(&self, conn: &Conn) -> Option<SocketAddr> {
        onrush_rt::net::peer_address(self.context.driver().descriptor(conn.stream)?)
    }

    /// The peer ended its direction (`Ok`) or the connection broke.
    fn ended(self: &Rc<Self>, id: ConnId, result: io::Result<()>) {
        if result.is_err() {
            return self.close(id, CloseReason::Broken);
        }
        let mut ending = CloseReason::Client;
        let reader = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            conn.ended = true;
            diagnose!(TRACE, connection = id.token(), phase = conn.phase.name();
                "the client ended its direction");
            if conn.phase == Phase::Lingering {
                ending = CloseReason::Answered;
            }
            match conn.phase {
                Phase::Ready | Phase::Lingering => None,
                Phase::Busy => Some(self.take_reader(id, conn)),
                Phase::Flushing => Some(None),
                Phase::Leaving => {
                    drop(conns);
                    return self.cancel_migration(id);
                }
            }
        };
        match reader {
            None => self.close(id, ending),
            Some(Some(reader)) => user::wake(reader),
            Some(None) => {} // Somebody is at work and will see it.
        }
    }

    /// A panic reached the event loop, or the end of a task: in a waker or a destructor of user
    /// code, in a log subscriber, or in the engine itself. It costs the connection that was served
    /// when it came, and nothing else.
    ///
    /// All cells are free again then: a borrow ends with the frame that has it. The engine changes
    /// what it keeps before it calls user code, so what is shared by connections is consistent. A
    /// connection that was being served may be anywhere in its protocol, so it is reset.
    #[cold]
    fn recover_from_panic(&self, id: Option<ConnId>) {
        count(&self.counters.caught);
        if let Some((recorder, measured)) = self.recorder.as_ref().zip(self.measuring.take()) {
            recorder.abort(&measured);
        }
        let worker = self.context.index();
        let cut = id.is_some();
        panic_guard::log(|| tracing::error!(worker, cut, "a panic was caught by the event loop"));
        if let Some(id) = id {
            self.abort(id, CloseReason::Cut);
        }
    }

    /// A body that somebody reads directly has become readable, or may be from now on.
    fn readable(self: &Rc<Self>, id: ConnId, quiet: bool) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            if quiet && conn.phase == Phase::Leaving {
                drop(conns);
                return self.finish_migration(id);
            }
            let Some(active) = conn.active.as_mut() else {
                return;
            };
            active.quiet |= quiet;
            self.take_reader(id, conn)
        };
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The engine as the worker's sink.
#[derive(Debug)]
pub(crate) struct EngineHandler(pub(crate) Rc<Engine>);

impl EventHandler for EngineHandler {
    #[inline]
    fn on_event(&self, event: Event) {
        match event {
            Event::Data { token, data, .. } => self.0.received(ConnId::from_token(token), data),
            Event::Accepted { socket, .. } => self.0.accept(socket),
            Event::End { token, result, .. } => self.0.ended(ConnId::from_token(token), result),
            Event::Quiet { token, .. } => self.0.readable(ConnId::from_token(token), true),
            Event::Readable { token, .. } => self.0.readable(ConnId::from_token(token), false),
            Event::Writable { token, .. } => self.0.writable(ConnId::from_token(token)),
            Event::AcceptPaused { error, .. } => self.0.accept_paused(&error),
        }
    }

    fn on_timer(&self, payload: u64) {
        self.0.timer_fired(ConnId::from_token(payload));
    }

    fn on_notify(&self) {
        self.0.receive_transfers();
    }

    #[inline]
    fn on_wake(&self) {
        self.0.rebalance_tick();
        self.0.reclaim_memory(); // The driver may have taken memory for what comes next.
    }

    fn on_blocked(&self, blocked: Blocked) {
        self.0.report_own_stall(blocked);
    }

    fn on_panic(&self, token: Option<u64>) -> bool {
        self.0.recover_from_panic(token.map(ConnId::from_token));
        true
    }
}

/// Runs user code; `None` when it panicked. The panic hook has printed why.
fn guarded<T>(engine: &Engine, call: impl FnOnce() -> T) -> Option<T> {
    let value = panic_guard::catch(call);
    if value.is_none() {
        count(&engine.counters.panicked);
        panic_guard::log(|| tracing::error!("a handler panicked"));
    }
    value
}

/// The answer to a request whose handler panicked.
fn panic_response() -> Response {
    Response::internal_error()
}
