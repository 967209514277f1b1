//! Synchronisation between coroutines of one worker, and the memory of many coroutines.

use crate::common::{contract, finish, message, pause, poll};
use onrush_coroutine::{self as coroutine, Coroutine, counters, mpsc, scope, sync, thread, wait};
use onrush_rt::driver::sim::{Behaviour, Net};
use onrush_rt::worker::Worker;
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use testing::watchdog;

#[test]
fn mutex_is_granted_in_order() {
    scope(|| {
        let mutex = Rc::new(sync::Mutex::new(Vec::new()));
        let mut waiting: Vec<Coroutine<()>> = (0..6)
            .map(|number| {
                let mutex = mutex.clone();
                Coroutine::new(contract(), move || {
                    let mut guard = mutex.lock().unwrap();
                    wait(pause());
                    guard.push(number);
                })
            })
            .collect();
        for coroutine in &mut waiting {
            assert!(poll(coroutine).is_pending());
        }
        assert!(mutex.try_lock().is_err());
        drop(waiting.remove(2)); // Drop one that waits, and one that has the lock.
        drop(waiting.remove(0));
        assert!(
            mutex.try_lock().is_err(),
            "the lock belongs to the next one"
        );
        // Polled in another order, they still get it in the order of arrival.
        while !waiting.is_empty() {
            waiting.reverse();
            waiting.retain_mut(|coroutine| poll(coroutine).is_pending());
        }
        assert_eq!(*mutex.try_lock().unwrap(), [1, 3, 4, 5]);
        let panics = mutex.clone();
        message(|| {
            finish(Coroutine::new(contract(), move || {
                let _guard = panics.lock().unwrap();
                panic!("on purpose");
            }))
        });
        // Not poisoned. A call that does not wait works outside a coroutine, too.
        mutex.lock().unwrap().clear();
        assert_eq!(format!("{mutex:?}"), "Mutex { data: [] }");
    });
}

#[test]
fn channels_end_and_are_bounded() {
    scope(|| {
        let (sender, receiver) = mpsc::sync_channel(2);
        let second = sender.clone();
        let mut sends = Coroutine::new(contract(), move || {
            (0..5).for_each(|number| sender.send(number).unwrap());
        });
        assert!(poll(&mut sends).is_pending());
        assert!(matches!(
            second.try_send(9),
            Err(mpsc::TrySendError::Full(9))
        ));
        let mut gets = Coroutine::new(contract(), move || receiver.iter().collect::<Vec<i32>>());
        assert!(poll(&mut gets).is_pending());
        while poll(&mut sends).is_pending() {
            assert!(poll(&mut gets).is_pending());
        }
        assert!(poll(&mut gets).is_pending(), "another sender exists");
        second.try_send(5).unwrap();
        drop(second);
        assert_eq!(poll(&mut gets), Poll::Ready(vec![0, 1, 2, 3, 4, 5]));

        let (sender, receiver) = mpsc::sync_channel(1);
        sender.try_send("taken back").unwrap();
        let mut sends = Coroutine::new(contract(), move || sender.send("kept").unwrap_err().0);
        assert!(poll(&mut sends).is_pending());
        drop(receiver);
        assert_eq!(poll(&mut sends), Poll::Ready("kept"));

        let (sender, receiver) = mpsc::channel();
        (0..1000).for_each(|number| sender.send(number).unwrap());
        drop(sender);
        assert_eq!(receiver.into_iter().sum::<i32>(), 499_500);
    });
}

/// Fifteen thousand sleeping coroutines on one worker.
#[test]
fn many_sleeping_coroutines_touch_little_memory() {
    scope(|| {
        let _dog = watchdog("many_sleeping_coroutines_touch_little_memory");
        const MANY: usize = 15_000;
        let behaviour = Behaviour {
            split: false,
            delay: false,
            ..Behaviour::default()
        };
        let net = Net::new(1, behaviour);
        let mut worker = Worker::simulated(net.clone(), 0).expect("a worker");
        let woken = Rc::new(Cell::new(0));
        let seen = woken.clone();
        let starts = Coroutine::new(contract(), move || {
            for _ in 0..MANY {
                let woken = seen.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_secs(60));
                    woken.set(woken.get() + 1);
                });
            }
        });
        worker.context().spawn(starts).detach();
        while worker.poll(&(), false).expect("the poll succeeds") {}
        assert_eq!((counters().in_use(), woken.get()), (MANY as u64, 0));
        let each = coroutine::touched_bytes() / MANY;
        println!("{each} bytes of memory each");
        assert!(each <= 8 << 10, "{each} bytes of memory each");
        net.advance(60_001);
        while worker.poll(&(), false).expect("the poll succeeds") {}
        assert_eq!((counters().in_use(), woken.get()), (0, MANY));
        assert!(counters().touched_bytes_max() <= 16 << 10);
        // Only the stacks kept for reuse still have memory.
        assert!(coroutine::touched_bytes() <= 1024 * (12 << 10));
    });
}

#[test]
fn all_receivers_of_one_channel_are_woken() {
    scope(|| {
        let (sender, receiver) = mpsc::channel();
        let receiver = Rc::new(receiver);
        let mut waiting: Vec<Coroutine<i32>> = (0..2)
            .map(|_| {
                let receiver = receiver.clone();
                Coroutine::new(contract(), move || receiver.recv().unwrap_or(-1))
            })
            .collect();
        let calls = Rc::new(Cell::new(0));
        let net = Net::new(1, Behaviour::default());
        let mut worker = Worker::simulated(net, 0).expect("a worker");
        let mut tasks = Vec::new();
        for mut coroutine in waiting.drain(..) {
            let calls = calls.clone();
            tasks.push(worker.context().spawn(std::future::poll_fn(move |cx| {
                calls.set(calls.get() + 1);
                std::pin::Pin::new(&mut coroutine).poll(cx)
            })));
        }
        worker.poll(&(), false).expect("the poll succeeds");
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        for _ in 0..3 {
            worker.poll(&(), false).expect("the poll succeeds");
        }
        assert!(tasks.iter().all(|task| task.is_finished()));
        assert_eq!(calls.get(), 4);
    });
}

/// Takes the lock when it is dropped, as the guard of a pooled connection does.
struct GivesBack(Rc<sync::Mutex<Vec<u32>>>, u32);

impl Drop for GivesBack {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(self.1);
    }
}

#[test]
fn destructor_may_take_a_free_lock_before_waiting_coroutines() {
    scope(|| {
        let pool = Rc::new(sync::Mutex::new(Vec::new()));
        let held = pool.clone();
        let mut holds = Coroutine::new(contract(), move || {
            let _guard = held.lock().unwrap();
            wait(pause());
        });
        let waits = pool.clone();
        let mut waits = Coroutine::new(contract(), move || waits.lock().unwrap().push(1));
        let gives = GivesBack(pool.clone(), 2);
        let mut dropped = Coroutine::new(contract(), move || {
            let _gives = gives;
            wait(pause());
        });
        assert!(poll(&mut holds).is_pending());
        assert!(poll(&mut waits).is_pending());
        assert!(poll(&mut dropped).is_pending());
        assert!(poll(&mut holds).is_ready());
        // The lock is free, but granted to the one that waits.
        drop(dropped);
        assert!(poll(&mut waits).is_ready());
        assert_eq!(*pool.lock().unwrap(), [2, 1]);
    });
}
