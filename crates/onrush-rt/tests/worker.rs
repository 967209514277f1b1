//! The worker: futures dropped at any point, wakes from other threads, tasks that panic, and the
//! end of a worker.

use crate::common::{ALL, KERNEL, Kind, Transport, choice, sockets, watchdog};
use onrush_rt::driver::Config;
use onrush_rt::driver::sim::{self, Behaviour};
use onrush_rt::net::{Address, ListenMode, ListenOptions, Listener, Stream, listen};
use onrush_rt::worker::{EventHandler, Pools, Worker, WorkerContext};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A worker and, if it is simulated, its network.
struct Rig {
    worker: Worker,
    net: Option<sim::Net>,
}

fn rig(kind: Kind, seed: u64) -> Option<Rig> {
    if kind == Kind::Sim {
        let net = sim::Net::new(seed, Behaviour::default());
        let worker = Worker::simulated(net.clone(), 0).expect("a worker");
        return Some(Rig {
            worker,
            net: Some(net),
        });
    }
    let config = Config::default();
    let choice = choice(kind)?;
    let worker = Worker::new(&choice, &config, Pools::default(), 0).expect("a worker");
    Some(Rig { worker, net: None })
}

fn on(kinds: &[Kind], what: &'static str, test: impl Fn(&mut Rig)) {
    let _dog = watchdog(what);
    for &kind in kinds {
        if let Some(mut rig) = rig(kind, 11) {
            test(&mut rig);
            echo(&mut rig); // The worker still works.
        }
    }
}

impl Rig {
    fn context(&self) -> WorkerContext {
        self.worker.context().clone()
    }

    fn poll(&mut self) {
        match &self.net {
            Some(net) => {
                net.advance(1);
                self.worker.poll(&(), false).expect("the poll succeeds");
            }
            None => {
                self.worker.poll(&(), true).expect("the poll succeeds");
            }
        }
    }

    /// Polls until a task that runs `future` is done.
    fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        let task = self.context().spawn(async move {
            let output = future.await;
            *place.borrow_mut() = Some(output);
        });
        loop {
            if let Some(output) = result.borrow_mut().take() {
                task.detach();
                return output;
            }
            self.poll();
        }
    }

    fn pair(&self) -> (Stream, Stream) {
        let (a, b) = sockets(Transport::Unix, self.net.as_ref()).expect("a pair");
        let context = self.context();
        (
            Stream::new(&context, a).expect("attached"),
            Stream::new(&context, b).expect("attached"),
        )
    }
}

/// Sends some bytes through a task that echoes.
fn echo(rig: &mut Rig) {
    let (mut client, mut server) = rig.pair();
    let context = rig.context();
    let said = crate::common::pattern(5, 60_000);
    let expected = said.clone();
    let heard = rig.run(async move {
        let echoing = context.spawn(async move {
            let mut piece = vec![0; 7000];
            loop {
                match server.read(&mut piece).await.expect("read") {
                    0 => break,
                    n => server.write_all(&piece[..n]).await.expect("written"),
                }
            }
        });
        client.write_all(&said).await.expect("written");
        client.shutdown_write();
        let mut heard = Vec::new();
        let mut piece = vec![0; 10_000];
        loop {
            match client.read(&mut piece).await.expect("read") {
                0 => break,
                n => heard.extend_from_slice(&piece[..n]),
            }
        }
        echoing.await;
        heard
    });
    assert!(heard == expected);
}

/// Polls `future` up to the `n`th `Pending` and drops it there. `true` if it was ready before.
async fn dropped_after(n: usize, future: impl Future) -> bool {
    let mut future = pin!(future);
    let mut left = n;
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending if left == 0 => Poll::Ready(false),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Runs the futures of `make`. The first is dropped at its first await, the second at its second.
fn at_every_await<F: Future + 'static>(rig: &mut Rig, make: impl Fn(&Rig) -> F) {
    for n in 0.. {
        assert!(n < 1000, "the future ends");
        let future = make(rig);
        if rig.run(dropped_after(n, future)) {
            assert!(n > 0, "the future waits at least once");
            return;
        }
    }
}

#[test]
fn sleeps_and_timeouts_dropped_anywhere() {
    on(&ALL, "sleeps_and_timeouts_dropped_anywhere", |rig| {
        at_every_await(rig, |rig| {
            let context = rig.context();
            async move {
                context.sleep(Duration::from_millis(3)).await;
                let never = std::future::pending::<()>();
                let out = context.timeout(Duration::from_millis(3), never).await;
                assert!(out.is_none());
                let soon = context.sleep(Duration::from_millis(1));
                let out = context.timeout(Duration::from_secs(3600), soon).await;
                assert!(out.is_some());
            }
        });
        assert_eq!(rig.worker.next_timer_ms(), None, "no timer is left");
    });
}

#[test]
fn reads_and_writes_dropped_anywhere() {
    on(&ALL, "reads_and_writes_dropped_anywhere", |rig| {
        at_every_await(rig, |rig| {
            let (mut a, mut b) = rig.pair();
            let context = rig.context();
            async move {
                let slow = context.spawn(async move {
                    let mut piece = vec![0; 100_000];
                    let mut all = 0;
                    loop {
                        match b.read(&mut piece).await.expect("read") {
                            0 => break,
                            n => all += n,
                        }
                    }
                    b.write_all(b"thanks").await.expect("written");
                    all
                });
                a.write_all(&vec![3; 700_000]).await.expect("written");
                a.shutdown_write();
                let mut said = [0; 16];
                assert!(a.read(&mut said).await.expect("read") > 0);
                assert_eq!(slow.await, 700_000);
            }
        });
    });
}

#[test]
fn connects_and_accepts_dropped_anywhere() {
    on(&KERNEL, "connects_and_accepts_dropped_anywhere", |rig| {
        let any = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let options = ListenOptions::default();
        let (mut sockets, address) = listen(&any, ListenMode::Shared, 1, &options).unwrap();
        let Address::Tcp(address) = address else {
            panic!("TCP")
        };
        let context = rig.context();
        let listener = Listener::new(&context, sockets.remove(0)).expect("listens");
        let listener = Rc::new(RefCell::new(Some(listener)));
        at_every_await(rig, |rig| {
            let (context, listener) = (rig.context(), listener.clone());
            async move {
                // Taken out while in use. A drop meanwhile puts it back.
                struct Lent(Option<Listener>, Rc<RefCell<Option<Listener>>>);
                impl Drop for Lent {
                    fn drop(&mut self) {
                        *self.1.borrow_mut() = self.0.take();
                    }
                }
                let taken = listener.borrow_mut().take();
                let mut lent = Lent(taken, listener);
                let mut client = Stream::connect(&context, address).await.expect("connected");
                client.write_all(b"!").await.expect("written");
                let mut byte = [0];
                loop {
                    // Connections of clients dropped before are in the queue, too.
                    let mut server = lent.0.as_mut().unwrap().accept().await.expect("accepted");
                    if server.read(&mut byte).await.is_ok_and(|n| n == 1)
                        && server.write_all(b"?").await.is_ok()
                    {
                        drop(server);
                        let piece =
                            context.timeout(Duration::from_millis(5), client.read(&mut byte));
                        if piece.await.is_some() {
                            break;
                        }
                    }
                }
            }
        });
        // The port has no listener any more: the same future returns the error.
        drop(listener);
        rig.poll_some();
        let context = rig.context();
        let refused = rig.run(async move { Stream::connect(&context, address).await.map(drop) });
        let kind = refused.expect_err("refused").kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    });
}

impl Rig {
    fn poll_some(&mut self) {
        for _ in 0..4 {
            self.worker.poll(&(), false).expect("the poll succeeds");
        }
    }
}

#[test]
fn unix_connect_and_accept() {
    on(&KERNEL, "unix_connect_and_accept", |rig| {
        let name = format!("onrush-rt-worker-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (mut sockets, _) = listen(
            &Address::Unix(path.clone()),
            ListenMode::Shared,
            1,
            &ListenOptions::default(),
        )
        .expect("listens");
        let context = rig.context();
        let mut listener = Listener::new(&context, sockets.remove(0)).expect("listens");
        let place = path.clone();
        rig.run(async move {
            let mut client = Stream::connect_unix(&context, &place)
                .await
                .expect("connected");
            let mut server = listener.accept().await.expect("accepted");
            client.write_all(b"over a path").await.expect("written");
            drop(client);
            let mut said = [0; 32];
            assert_eq!(server.read(&mut said).await.expect("read"), 11);
            assert_eq!(server.read(&mut said).await.expect("the end"), 0);
        });
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn blocking_jobs_dropped_anywhere() {
    on(&ALL, "blocking_jobs_dropped_anywhere", |rig| {
        let inline = rig.net.is_some();
        for n in 0..3 {
            let job = rig.context().blocking().run(|| {
                std::thread::sleep(Duration::from_millis(20));
                6 * 7
            });
            let done = rig.run(dropped_after(n, job));
            assert_eq!(done, inline || n > 0);
        }
        let pool = rig.context().blocking().clone();
        assert_eq!(rig.run(async move { pool.run(|| 42).await }), Ok(42));
    });
}

#[test]
fn sleep_starts_when_it_is_created() {
    on(&ALL, "sleep_starts_when_it_is_created", |rig| {
        // The worker's cached time is old by now.
        let wait = Duration::from_millis(30);
        match &rig.net {
            Some(net) => net.advance(50),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
        let start = (Instant::now(), rig.net.as_ref().map(sim::Net::now_ms));
        let sleep = rig.context().sleep(wait);
        rig.run(sleep);
        let slept = match &rig.net {
            Some(net) => Duration::from_millis(net.now_ms() - start.1.unwrap()),
            None => start.0.elapsed(),
        };
        assert!(slept >= wait, "{slept:?}");
    });
}

#[test]
fn another_thread_wakes_a_sleeping_worker() {
    struct Stop(Cell<u32>);
    impl EventHandler for Stop {
        fn on_event(&self, _: onrush_rt::driver::Event) {}
        fn on_timer(&self, _: u64) {}
        fn on_notify(&self) {
            self.0.set(self.0.get() + 1);
        }
    }
    on(&KERNEL, "another_thread_wakes_a_sleeping_worker", |rig| {
        for round in 0..50_u32 {
            let notifier = rig.worker.notifier();
            let thread = std::thread::spawn(move || {
                // Sometimes before the worker sleeps, mostly after.
                std::thread::sleep(Duration::from_micros(u64::from(round) * 40));
                notifier.notify();
            });
            let stop = Stop(Cell::new(0));
            while stop.0.get() == 0 {
                rig.worker.poll(&stop, true).expect("the poll succeeds");
            }
            assert_eq!(stop.0.get(), 1);
            thread.join().unwrap();
        }
        // The waker of a task, called on another thread.
        for _ in 0..50 {
            let (give, take) = mpsc::channel::<std::task::Waker>();
            let woken = Arc::new(AtomicBool::new(false));
            let flag = woken.clone();
            let thread = std::thread::spawn(move || {
                let waker = take.recv().expect("a waker");
                flag.store(true, Ordering::Release);
                waker.wake();
            });
            rig.run(std::future::poll_fn(move |cx| {
                if woken.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                let _ = give.send(cx.waker().clone());
                Poll::Pending
            }));
            thread.join().unwrap();
        }
    });
}

#[test]
fn panic_ends_only_its_own_task() {
    on(&ALL, "panic_ends_only_its_own_task", |rig| {
        let context = rig.context();
        let sleeping = context.clone();
        context
            .spawn(async move {
                sleeping.sleep(Duration::from_millis(1)).await;
                panic!("on purpose");
            })
            .detach();
        let other = context.clone();
        rig.run(async move { other.sleep(Duration::from_millis(5)).await });
        assert_eq!(context.live_tasks(), 0);
    });
}

/// Counts its drops.
struct Drops(Rc<Cell<u32>>, WorkerContext);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        // A task that a destructor starts is dropped, too.
        let count = self.0.clone();
        if self.0.get() < 20 {
            let again = Drops(count, self.1.clone());
            self.1.spawn(async move { drop(again) }).detach();
        }
    }
}

#[test]
fn dropped_worker_drops_every_task() {
    let _dog = watchdog("dropped_worker_drops_every_task");
    for kind in ALL {
        let Some(mut rig) = rig(kind, 3) else {
            continue;
        };
        let count = Rc::new(Cell::new(0));
        let context = rig.context();
        for which in 0..5 {
            let kept = Drops(count.clone(), context.clone());
            let (mut a, b) = rig.pair();
            let own = context.clone();
            let future: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                let _kept = (kept, b);
                match which {
                    0 => std::future::pending().await,
                    1 => own.sleep(Duration::from_secs(3600)).await,
                    2 => drop(a.read(&mut [0; 8]).await),
                    3 => drop(a.write_all(&vec![0; 50 << 20]).await),
                    _ => {
                        std::future::poll_fn::<(), _>(|cx| {
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        })
                        .await
                    }
                }
            });
            context.spawn(future).detach();
        }
        rig.poll_some();
        assert_eq!(context.live_tasks(), 5);
        let notifier = rig.worker.notifier();
        drop(rig);
        assert!(count.get() >= 20, "{} of them", count.get());
        assert_eq!(context.live_tasks(), 0);
        notifier.notify(); // The worker is gone; this has no effect.
    }
}

/// A waker may outlive the worker, and another thread may use it.
#[test]
fn waker_may_outlive_its_worker() {
    let _dog = watchdog("waker_may_outlive_its_worker");
    for kind in KERNEL {
        let Some(mut rig) = rig(kind, 3) else {
            continue;
        };
        let kept = Rc::new(RefCell::new(None));
        let place = kept.clone();
        rig.context()
            .spawn(std::future::poll_fn(move |cx: &mut Context<'_>| {
                *place.borrow_mut() = Some(cx.waker().clone());
                Poll::<()>::Pending
            }))
            .detach();
        rig.poll_some();
        drop(rig);
        let waker = kept.borrow_mut().take().expect("polled once");
        std::thread::spawn(move || {
            waker.wake_by_ref();
            drop(waker);
        })
        .join()
        .expect("the wake has no effect");
    }
}

#[test]
fn block_on_sleeps_and_polls_tasks() {
    let _dog = watchdog("block_on_sleeps_and_polls_tasks");
    for kind in KERNEL {
        let Some(mut rig) = rig(kind, 3) else {
            continue;
        };
        let context = rig.context();
        let start = Instant::now();
        let seven = rig.worker.block_on(async move {
            let task = context.spawn(async { 7 });
            context.sleep(Duration::from_millis(20)).await;
            task.await
        });
        assert_eq!(seven.expect("the poll succeeds"), 7);
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}

#[test]
fn code_on_a_worker_can_access_its_context() {
    let _dog = watchdog("code_on_a_worker_can_access_its_context");
    let here = || WorkerContext::current().map(|context| context.index());
    let net = sim::Net::new(5, Behaviour::default());
    let mut workers = [0, 1].map(|index| Worker::simulated(net.clone(), index).expect("a worker"));
    let seen: Rc<RefCell<Vec<_>>> = Rc::default();
    for worker in &workers {
        let seen = seen.clone();
        let task = async move { seen.borrow_mut().push(here()) };
        worker.context().spawn(task).detach();
    }
    for worker in &mut workers {
        worker.poll(&(), false).expect("the poll succeeds");
        assert_eq!(here(), None);
    }
    assert_eq!(*seen.borrow(), [Some(0), Some(1)]);
    assert_eq!(
        workers[1]
            .block_on(async { here() })
            .expect("the poll succeeds"),
        Some(1)
    );
    assert_eq!(here(), None);
}
