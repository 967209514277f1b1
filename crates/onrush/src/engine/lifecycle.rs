//! [`Engine`], and the life of a connection: how it is opened, drained and closed.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::http2::Http2;
use crate::engine::connection::state::Target;
use crate::engine::open::{OpenConn, OpenConns};
use crate::engine::shared::checks::{RebalanceState, StallReports};
use crate::engine::shared::crowding::Crowd;
use crate::engine::shared::handshakes::{TlsSettings, WorkerTls};
use crate::engine::shared::idle_order::IdleOrder;
use crate::engine::shared::listeners::{Incoming, Listeners};
use crate::engine::shared::outbox::Outbox;
use crate::engine::shared::peers::Peers;
use crate::engine::shared::transfer::Transfer;
use crate::handler::Service;
use crate::log::EntryWindow;
use crate::metrics::{CloseReason, Counter, Counters, Kind as _, Metrics};
use crate::panic_guard;
use crate::params;
use crate::request::RequestPool;
use crate::response::Response;
use crate::running_settings::RunningSettings;
use crate::watchdog::Watchdog;
use crate::worker::WorkerHandle;
use crate::worker_set::WorkerSet;
use onrush_proto::limits::Limits;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::diagnose;
use onrush_rt::driver::{ListenSocket, Socket};
use onrush_rt::executor::TaskSlot;
use onrush_rt::user;
use onrush_rt::worker::WorkerContext;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The largest number of connections over the limit that a worker keeps open while their clients
/// read the 503. For a further one it closes the oldest of them, whose client may see a reset
/// instead.
pub(crate) const OVER_LIMIT_MAX: usize = 64;
/// The lower bound for [`Settings::over_limit_max`]: a new connection may arrive before the worker
/// notices that a previous one has closed.
pub(crate) const OVER_LIMIT_MIN: usize = 4;
/// The settings of an engine, from the configuration of the server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Those that can change.
    pub(crate) running: RunningSettings,
    /// The present number of open connections of all workers.
    pub(crate) connections: Arc<AtomicUsize>,
    /// The descriptor budget of the process, which counts connections as well.
    pub(crate) descriptors: Descriptors,
    /// See [`OVER_LIMIT_MAX`]. Smaller when the connection limit is small, because these
    /// connections use descriptors too.
    pub(crate) over_limit_max: usize,
    /// When a worker last logged that accepting is paused, in seconds since the epoch. Shared by
    /// all workers.
    pub(crate) accept_warned_s: Arc<AtomicU64>,
    /// `None`: no connection uses TLS.
    pub(crate) tls: Option<TlsSettings>,
    pub(crate) metrics: Option<Metrics>,
    /// Connections begin with a header of the PROXY protocol, of a trusted peer.
    pub(crate) proxy_protocol: bool,
    /// Clients may speak HTTP/2.
    pub(crate) http2: bool,
    /// Clients of HTTP/2 may ask for other protocols.
    pub(crate) extended_connect: bool,
    /// A client that sends no more may still want its response.
    pub(crate) half_close: bool,
    /// The workers of this server.
    pub(crate) worker_set: Arc<WorkerSet<Transfer>>,
    /// Detects blocked workers.
    pub(crate) watchdog: Arc<Watchdog>,
}

impl Settings {
    /// Reserves a place under the connection limit; `false` when there is none.
    pub(crate) fn reserve(&self, connections_max: usize) -> bool {
        let connections = &self.connections;
        let has_room = connections.fetch_add(1, Ordering::Relaxed) < connections_max;
        let free = has_room && self.descriptors.open_connection();
        if !free {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
        free
    }

    /// Releases a place under the connection limit.
    pub(crate) fn release(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        self.descriptors.close_connection();
    }
}

/// The connections of one worker, and what they share.
pub(crate) struct Engine {
    pub(super) context: WorkerContext,
    pub(super) handle: WorkerHandle,
    pub(super) settings: Settings,
    /// At first those of `settings`.
    pub(super) running: RefCell<RunningSettings>,
    pub(super) service: Rc<dyn Service>,
    pub(super) conns: OpenConns,
    /// Memory of finished requests, for reuse.
    pub(super) request_pool: Rc<RequestPool>,
    pub(super) listeners: Listeners,
    /// While it drains and connections are passed on to another process.
    pub(super) outbox: RefCell<Option<Arc<Outbox>>>,
    /// Receive memory was so short that receiving ahead of handlers was paused for all connections.
    /// Reset when memory is no longer short. See `pressure`.
    pub(super) ahead_paused: Cell<bool>,
    /// Open connections over the limit, which receive a 503.
    pub(super) over_limit: RefCell<VecDeque<ConnId>>,
    pub(super) idle_order: IdleOrder,
    pub(super) crowd: Crowd,
    pub(super) counters: Arc<Counters>,
    /// The task for the next handler that is not ready at once.
    pub(super) task_slot: RefCell<TaskSlot>,
    pub(super) rebalance_state: RebalanceState,
    pub(super) stalls: StallReports,
    /// Limits the log entries about connections without a valid header of the PROXY protocol.
    pub(super) proxy_refusals: Cell<EntryWindow>,
    pub(super) tls: WorkerTls,
}

#[inline]
pub(super) fn count(counter: &Counter) {
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
            let busy = settings.worker_set.load(context.index());
            metrics.worker(context, &counters, busy)
        });
        let peers = Peers::new(context, settings.proxy_protocol);
        let limits = settings.running.limits;
        let conns = OpenConns::new(context, limits, &counters, recorder, peers);
        let engine = Rc::new(Engine {
            context: context.clone(),
            handle: WorkerHandle::new(context),
            running: RefCell::new(settings.running.clone()),
            settings,
            service,
            request_pool: Rc::default(),
            listeners: Listeners::new(context),
            outbox: RefCell::default(),
            ahead_paused: Cell::new(false),
            over_limit: RefCell::default(),
            idle_order: IdleOrder::default(),
            crowd: Crowd::new(context, &conns.peers),
            conns,
            counters,
            task_slot: RefCell::new(context.task_slot()),
            rebalance_state: RebalanceState::default(),
            stalls: StallReports::default(),
            proxy_refusals: Cell::default(),
            tls: WorkerTls::new(),
        });
        let weak = Rc::downgrade(&engine);
        engine.conns.set_logging(engine.settings.running.access_log);
        context.check_before_user_code(move || {
            (weak.upgrade()).is_none_or(|engine| engine.conns.is_free())
        });
        engine
    }

    /// The handle to this worker that handlers receive.
    pub(crate) fn handle(&self) -> &WorkerHandle {
        &self.handle
    }

    /// The counters of this worker.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections open now.
    pub(crate) fn open_connections(&self) -> usize {
        self.conns.all().len()
    }

    /// Connections that are assigned to this worker, including those on their way to it.
    pub(crate) fn assigned(&self) -> usize {
        self.settings.worker_set.open(self.context.index())
    }

    /// Borrows the connections; no user code may run meanwhile.
    #[cfg(all(test, debug_assertions))]
    pub(crate) fn hold_connections(&self) -> impl Sized + use<'_> {
        self.conns.all()
    }

    pub(super) fn limits(&self) -> Limits {
        self.conns.limits.get()
    }

    /// Replaces the settings that can change. Waits that have begun keep their deadline.
    pub(crate) fn set_settings(&self, settings: RunningSettings) {
        self.conns.limits.set(settings.limits);
        self.conns.set_logging(settings.access_log);
        drop(self.running.replace(settings));
    }

    /// Starts to accept from a listening socket. The order of the calls is that of
    /// [`Listening::sockets`](crate::server).
    pub(crate) fn listen(&self, socket: ListenSocket) -> io::Result<()> {
        self.listeners.listen(socket, |index| self.uses_tls(index))
    }

    /// Closes the listeners, after all connections in their queues have been accepted.
    pub(crate) fn stop_accepting(&self) {
        self.listeners.close();
    }

    /// Finishes the requests in progress and those pipelined behind them. The last response of a
    /// connection says `Connection: close` (RFC 9112, section 9.6). Closes each connection when it
    /// becomes idle, or passes it on through `outbox`. Does not close listeners;
    /// [`Engine::stop_accepting`] does.
    pub(crate) fn drain(self: &Rc<Self>, outbox: Option<Arc<Outbox>>) {
        drop(self.outbox.replace(outbox));
        self.settings.worker_set.drain(); // The other workers drain as well.
        self.conns.shutdown.begin();
        let ids = self.conns.ids();
        for id in ids {
            if !self.pass_on(id) {
                self.conns.drain(id);
            }
        }
    }

    /// Closes all connections at once.
    pub(crate) fn close_all(&self) {
        self.request_pool.close();
        let ids = self.conns.ids();
        for id in ids {
            panic_guard::catch(|| self.close(id, CloseReason::Stopped));
        }
        self.conns.io.log.write(); // Tasks no longer run.
    }

    /// Begins to serve a new connection. Its places under the connection limit and in the worker
    /// set are already reserved.
    pub(super) fn open_connection(self: &Rc<Self>, incoming: Incoming) {
        count(&self.counters.placed);
        let Some(id) = self.attach(incoming.socket) else {
            return;
        };
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        self.context.driver().receive(conn.stream);
        match self.settings.proxy_protocol {
            true => self.expect_proxy_header(&mut conn, incoming.tls),
            false => self.start_transport(&mut conn, incoming.tls),
        }
        drop(conn);
        if self.is_passing() {
            self.pass_on_if_idle(id);
        }
    }

    /// Waits for the handshake of a connection, or for its first request.
    pub(super) fn start_transport(&self, conn: &mut OpenConn<'_>, tls: bool) {
        match tls {
            true => conn.start_tls(),
            false => self.expect_first_head(conn),
        }
    }

    /// Waits for the first request of a connection. The head time limit applies from now on.
    pub(super) fn expect_first_head(&self, conn: &mut OpenConn<'_>) {
        if self.is_passing() {
            conn.state.plan_move(Target::Successor);
        }
        match self.conns.shutdown.ends(conn) {
            true => conn.state.expect_request(),
            false => conn.state.expect_head(),
        }
        conn.set_first_timeout();
    }

    /// Creates the entry of a connection. The caller starts receiving. On failure, releases the
    /// places of the connection.
    pub(super) fn attach(&self, socket: Socket) -> Option<ConnId> {
        let id = self.conns.all().reserve();
        let attached = self.context.driver().attach(socket, id.token());
        match attached {
            Ok(stream) => {
                self.conns.insert(id, Conn::new(stream));
                diagnose!(DEBUG, worker = self.context.index(), connection = id.token();
                    "connection opened");
                Some(id)
            }
            Err(error) => {
                panic_guard::log(|| tracing::warn!(%error, "a connection could not be attached"));
                self.conns.all().release(id);
                self.record_close(CloseReason::Exhausted);
                None
            }
        }
    }

    /// Counts a closed connection and releases its places.
    pub(super) fn record_close(&self, reason: CloseReason) {
        self.counters.done.count(reason);
        self.settings.release();
        self.settings.worker_set.release(self.context.index());
    }

    /// Closes a connection and cancels its task.
    pub(super) fn close(&self, id: ConnId, reason: CloseReason) {
        let Some(mut conn) = self.conns.remove(id) else {
            return;
        };
        // However it ends then: clients reset it when they read that it has failed.
        let reason = (conn.http2().and_then(|http2| http2.failed)).unwrap_or(reason);
        diagnose!(DEBUG, worker = self.context.index(), connection = id.token(),
            reason = reason.name(), phase = conn.state.phase().name(); "connection closed");
        self.close_tls(&mut conn, reason);
        self.conns.peers.forget(conn.stream);
        self.context.driver().close(conn.stream);
        if let Some(timer) = conn.timer {
            self.context.unschedule(timer);
        }
        if conn.state.is_refused() {
            self.counters.done.count(CloseReason::Refused);
            self.over_limit.borrow_mut().retain(|&other| other != id);
        } else {
            self.record_close(reason);
        }
        if self.conns.io.log.is_on() {
            self.conns.io.log.closed(&mut conn, reason);
        }
        let active = conn.active.as_mut();
        let (reader, measured) = match active {
            Some(active) => (
                active.exchange.reader.take(),
                active.exchange.measured.take(),
            ),
            None => (None, None),
        };
        if let Some(measured) = measured {
            self.conns.io.measurements.abort(&measured);
        }
        let slots = conn.http2().map(Http2::take_slots).unwrap_or_default();
        drop(conn);
        for slot in slots {
            self.drop_slot(slot, reason);
        }
        if let Some(reader) = reader {
            user::wake(reader); // A user task that reads the body must not wait forever.
        }
    }

    /// Resets a connection, so that the client does not mistake a truncated response for a complete
    /// one.
    pub(super) fn abort(&self, id: ConnId, reason: CloseReason) {
        let stream = self.conns.open(id).map(|conn| conn.stream);
        if let Some(stream) = stream {
            self.context.driver().reset(stream);
        }
        self.close(id, reason);
    }

    /// Handles a panic that reached the event loop or the poll of a task. Its origin is a waker, a
    /// destructor of user code, a log subscriber, or the engine itself. It ends only the connection
    /// that was being served.
    ///
    /// All cells are free at this point, because a borrow ends with its stack frame. The engine
    /// changes its state before it calls user code, so state that connections share is consistent.
    /// The connection that was being served may be in any protocol state, so it is reset.
    #[cold]
    pub(super) fn recover_from_panic(&self, id: Option<ConnId>) {
        count(&self.counters.caught);
        self.conns.io.measurements.abort_present();
        let worker = self.context.index();
        let connection_reset = id.is_some();
        panic_guard::log(|| {
            tracing::error!(
                worker,
                connection_reset,
                "a panic was caught by the event loop"
            )
        });
        if let Some(id) = id {
            self.abort(id, CloseReason::Cut);
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

/// Calls user code; `None` when it panicked. The panic hook has printed the message.
pub(super) fn guarded<T>(counters: &Counters, call: impl FnOnce() -> T) -> Option<T> {
    let value = panic_guard::catch(call);
    if value.is_none() {
        count(&counters.panicked);
        panic_guard::log(|| {
            let route = params::present_route();
            tracing::error!(route, "a handler panicked");
        });
    }
    value
}

/// The response to a request whose handler panicked.
pub(super) fn panic_response() -> Response {
    Response::internal_error()
}
