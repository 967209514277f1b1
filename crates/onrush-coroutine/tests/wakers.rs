//! User wakers and destructors that call back or panic wherever a worker calls them. A panic costs
//! the future that it belongs to, never the worker.

use crate::common::{KERNEL, choice, contract};
use onrush_coroutine::{Coroutine, mpsc, scope, wait};
use onrush_rt::driver::sim::{Behaviour, Net};
use onrush_rt::driver::{Config, ListenSocket, Socket};
use onrush_rt::net::{Listener, Stream};
use onrush_rt::worker::{Pools, Worker, WorkerContext};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A worker with two connected streams and a listener that has a connection to accept.
struct Rig {
    worker: Worker,
    net: Option<Net>,
}

impl Rig {
    fn poll(&mut self) {
        if let Some(net) = &self.net {
            net.advance(20);
        }
        let may_sleep = self.net.is_none();
        let nudge = self.worker.context().sleep(Duration::from_millis(1));
        self.worker.context().spawn(nudge).detach();
        self.worker
            .poll(&(), may_sleep)
            .expect("the worker continues");
    }

    fn pair(&self) -> (Stream, Stream) {
        let context = self.worker.context();
        let sockets = match &self.net {
            Some(net) => {
                let (a, b) = net.pair();
                [Socket::Sim(a), Socket::Sim(b)]
            }
            None => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
                let (a, b) = pair.expect("a pair");
                [Socket::Os(a), Socket::Os(b)]
            }
        };
        let [a, b] = sockets.map(|socket| Stream::new(context, socket).expect("attached"));
        (a, b)
    }

    fn listener(&self) -> Listener {
        let socket = match &self.net {
            Some(net) => net.listen().0,
            None => {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
                listener.set_nonblocking(true).expect("set");
                ListenSocket::Os(listener.into())
            }
        };
        Listener::new(self.worker.context(), socket).expect("listens")
    }

    /// Checks that the worker still serves streams, timers and tasks.
    fn works(&mut self) {
        let (mut a, mut b) = self.pair();
        let done = Rc::new(Cell::new(false));
        let says = done.clone();
        let context = self.worker.context().clone();
        let task = async move {
            context.sleep(Duration::from_millis(1)).await;
            a.write_all(b"hello").await.expect("written");
            let mut got = Vec::new();
            while got.len() < 5 {
                let mut piece = [0; 5];
                let n = b.read(&mut piece).await.expect("read");
                got.extend_from_slice(&piece[..n]);
            }
            assert_eq!(got, b"hello");
            says.set(true);
        };
        self.worker.context().spawn(task).detach();
        while !done.get() {
            self.poll();
        }
    }
}

fn everywhere(test: impl Fn(&mut Rig)) {
    let net = Net::new(5, Behaviour::default());
    let worker = Worker::simulated(net.clone(), 0).expect("a worker");
    let mut rigs = vec![Rig {
        worker,
        net: Some(net),
    }];
    for choice in KERNEL.into_iter().filter_map(choice) {
        let config = Config::default();
        let worker = Worker::new(&choice, &config, Pools::default(), 0).expect("a worker");
        rigs.push(Rig { worker, net: None });
    }
    for mut rig in rigs {
        scope(|| test(&mut rig));
        rig.works();
    }
}

thread_local! {
    /// What a waker does when it is woken or dropped. Stored here, because wakers must be `Send`.
    static ACTS: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Calls this thread's [`ACTS`] when it is woken and when it is dropped.
struct Calls;

fn act() {
    CALLS.fetch_add(1, SeqCst);
    let act = ACTS.try_with(|acts| acts.borrow().clone()).ok().flatten();
    if let Some(act) = act {
        act();
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        act();
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        act();
    }
}

fn waker() -> Waker {
    Waker::from(Arc::new(Calls))
}

/// Polls `future` with a waker of its own.
fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(&waker()))
}

/// Uses every part of the worker that a waker can access.
fn uses(context: &WorkerContext, streams: &Rc<RefCell<Option<(Stream, Stream)>>>) {
    drop(context.driver());
    context.spawn(async {}).detach();
    drop(context.task_slot());
    let mut sleep = pin!(context.sleep(Duration::from_millis(3)));
    assert!(
        sleep
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    context.unschedule(context.schedule(context.now_ms() + 5, 1));
    if let Ok(mut streams) = streams.try_borrow_mut()
        && let Some((a, b)) = &mut *streams
    {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(a.poll_read(cx, &mut [0; 8]).is_pending());
        assert!(matches!(
            b.poll_write(cx, b""),
            Poll::Ready(_) | Poll::Pending
        ));
    }
}

/// Every place that stores a waker replaces, wakes and drops one that calls back into the worker.
#[test]
fn wakers_may_call_back() {
    everywhere(|rig| {
        let context = rig.worker.context().clone();
        let others = Rc::new(RefCell::new(Some(rig.pair())));
        let (reached, theirs) = (context.clone(), others.clone());
        ACTS.set(Some(Rc::new(move || uses(&reached, &theirs))));
        let before = CALLS.load(SeqCst);
        keep_replace_wake_and_drop(rig);
        assert!(
            CALLS.load(SeqCst) > before + 20,
            "the waker's code was called"
        );
        ACTS.set(None);
        drop((others.take(), context));
    });
}

/// The same with a waker that panics when it is woken.
#[test]
fn wakers_may_panic_when_woken() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            CALLS.fetch_add(1, SeqCst);
            panic!("on purpose");
        }
    }
    everywhere(|rig| {
        let waker = Waker::from(Arc::new(Panics));
        let cx = &mut Context::from_waker(&waker);
        let before = CALLS.load(SeqCst);
        let (mut reads, mut writes) = rig.pair();
        assert!(reads.poll_read(cx, &mut [0; 8]).is_pending());
        let mut sleep = Box::pin(rig.worker.context().sleep(Duration::from_millis(2)));
        assert!(sleep.as_mut().poll(cx).is_pending());
        let mut job = rig.worker.context().blocking().run(|| 7);
        if Pin::new(&mut job).poll(cx).is_pending() {
            while Pin::new(&mut job).poll(cx).is_pending() {
                rig.poll();
            }
        }
        assert!(writes.poll_write(cx, b"x").is_ready());
        while CALLS.load(SeqCst) < before + 2 || sleep.as_mut().poll(cx).is_pending() {
            rig.poll();
        }
        let (sender, receiver) = mpsc::sync_channel::<u8>(1);
        let mut waits = Coroutine::new(contract(), move || receiver.recv().is_ok());
        assert!(Pin::new(&mut waits).poll(cx).is_pending());
        sender.send(1).expect("the receiver exists");
        assert_eq!(Pin::new(&mut waits).poll(cx), Poll::Ready(true));
    });
}

fn keep_replace_wake_and_drop(rig: &mut Rig) {
    let (mut reads, mut writes) = rig.pair();
    for _ in 0..3 {
        assert!(poll_fn_once(|cx| reads.poll_read(cx, &mut [0; 8])).is_pending());
    }
    let filled = loop {
        let full = vec![0; 1 << 20];
        if poll_fn_once(|cx| writes.poll_write(cx, &full)).is_pending() {
            break true;
        }
    };
    assert!(filled && poll_fn_once(|cx| writes.poll_write(cx, b"more")).is_pending());
    let mut sleep = Box::pin(rig.worker.context().sleep(Duration::from_millis(2)));
    assert!(poll(&mut sleep).is_pending() && poll(&mut sleep).is_pending());
    let mut listener = rig.listener();
    for _ in 0..3 {
        assert!(poll_fn_once(|cx| listener.poll_accept(cx)).is_pending());
    }
    let mut into = vec![0; 1 << 20];
    for _ in 0..20 {
        rig.poll();
        let _ = poll_fn_once(|cx| reads.poll_read(cx, &mut into));
        let _ = poll_fn_once(|cx| writes.poll_write(cx, b"more"));
    }
    let _ = poll(&mut sleep);
    let mut job = rig.worker.context().blocking().run(|| 7);
    let _ = poll(&mut job);
    drop((reads, writes, listener, sleep, job));
    let lock = Rc::new(onrush_coroutine::Mutex::new(0));
    let (held, wants) = (lock.clone(), lock.clone());
    let mut holds = Coroutine::new(contract(), move || {
        let _held = held.lock();
        wait(pending::<()>());
    });
    let mut waits = Coroutine::new(contract(), move || {
        *wants.lock().expect("never poisoned") += 1
    });
    let (sender, receiver) = mpsc::sync_channel::<u8>(1);
    let mut receives = Coroutine::new(contract(), move || receiver.iter().count());
    for _ in 0..3 {
        assert!(poll(&mut holds).is_pending() && poll(&mut waits).is_pending());
        assert!(poll(&mut receives).is_pending());
    }
    drop(holds);
    assert!(poll(&mut waits).is_ready());
    sender.send(1).expect("the receiver exists");
    drop(sender);
    assert_eq!(poll(&mut receives), Poll::Ready(1));
    rig.poll();
}

fn poll_fn_once<T>(mut act: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll(&mut poll_fn(|cx| act(cx)))
}

/// Panics when it is dropped, and so does the payload of that panic.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Bomb(self.0 - 1));
        }
    }
}

/// Is ready at once, panics, or is never ready. Panics when it is dropped in any case.
struct Ends(u32, #[allow(dead_code)] Bomb);

impl Future for Ends {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match self.0 {
            0 => Poll::Ready(()),
            1 => std::panic::panic_any(Bomb(2)),
            _ => Poll::Pending,
        }
    }
}

/// Tasks whose futures panic when they are dropped: at their end, when cancelled, after a panic of
/// their own, and with the worker.
#[test]
fn futures_may_panic_when_dropped() {
    let _silence = testing::panics::silence(|info| info.payload().is::<Bomb>());
    everywhere(|rig| {
        let context = rig.worker.context().clone();
        let ends = |how| Ends(how, Bomb(2));
        for how in 0..3 {
            context.spawn(ends(how)).detach();
            drop(context.spawn(ends(how)));
            let task_slot = context.task_slot();
            let waker = task_slot.waker().clone();
            task_slot.start(ends(how)).detach();
            waker.wake();
            let task_slot = context.task_slot();
            drop(task_slot.start(ends(how)));
            let cancelled = context.spawn(ends(how));
            rig.poll();
            drop(cancelled);
        }
        for _ in 0..5 {
            rig.poll();
        }
        rig.works();
    });
}
