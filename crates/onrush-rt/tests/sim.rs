//! The simulated network: a seed determines the run, and everything that the kernel may do occurs.

use crate::common::watchdog;
use onrush_rt::driver::sim::{Behaviour, Client, Net, Random, SimDriver};
use onrush_rt::driver::{Driver, Event};
use std::io::ErrorKind;

/// Some clients use one driver that echoes. Returns the trace of the network and the echoes.
fn run(seed: u64, behaviour: Behaviour) -> (u64, Vec<Vec<u8>>) {
    let net = Net::new(seed, behaviour);
    let mut driver = Driver::Sim(Box::new(SimDriver::new(net.clone(), 1 << 20)));
    let (listener, address) = net.listen();
    driver.listen(listener).unwrap();
    let clients: Vec<Client> = (0..6).map(|_| address.connect().unwrap()).collect();
    let said = |i: usize| crate::common::pattern(i as u64, 3000);
    let mut sent = vec![0; clients.len()];
    let mut got = vec![Vec::new(); clients.len()];
    let mut owed: Vec<(onrush_rt::driver::StreamId, Vec<u8>)> = Vec::new();
    while got.iter().any(|got| got.len() < 3000) {
        for (i, client) in clients.iter().enumerate() {
            sent[i] += client.send(&said(i)[sent[i]..]).unwrap();
            got[i].extend(client.receive().unwrap());
        }
        net.advance(1);
        driver.poll_events(None).unwrap();
        while let Some(event) = driver.next() {
            match event {
                Event::Accepted { socket, .. } => {
                    let stream = driver.attach(socket, owed.len() as u64).unwrap();
                    driver.receive(stream);
                    owed.push((stream, Vec::new()));
                }
                Event::Data { token, data, .. } => owed[token as usize].1.extend(&*data),
                other => panic!("{other:?}"),
            }
        }
        for (stream, owed) in &mut owed {
            if !owed.is_empty()
                && let Ok(n) = driver.send(*stream, owed)
            {
                owed.drain(..n);
            }
        }
    }
    for (i, got) in got.iter().enumerate() {
        assert!(*got == said(i));
    }
    (net.trace(), got)
}

#[test]
fn same_seed_gives_the_same_run() {
    let _dog = watchdog("same_seed_gives_the_same_run");
    let mut traces = Vec::new();
    for seed in 0..40 {
        let (trace, _) = run(seed, Behaviour::default());
        assert_eq!(run(seed, Behaviour::default()).0, trace, "seed {seed}");
        traces.push(trace);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 40, "different seeds give different runs");
}

#[test]
fn small_pipes_and_ordered_events_work() {
    let _dog = watchdog("small_pipes_and_ordered_events_work");
    for (pipe_bytes, split, delay) in [(10, true, true), (1, false, false), (4096, false, true)] {
        run(
            1,
            Behaviour {
                pipe_bytes,
                split,
                delay,
            },
        );
    }
}

#[test]
fn connect_without_listener_is_refused() {
    let _dog = watchdog("connect_without_listener_is_refused");
    let net = Net::new(1, Behaviour::default());
    let (listener, address) = net.listen();
    let queued = address.connect().unwrap();
    drop(listener);
    let refused = address.connect().expect_err("no listener");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(queued.at_end());
}

#[test]
fn failed_accept_is_reported_and_retried() {
    let _dog = watchdog("failed_accept_is_reported_and_retried");
    let net = Net::new(1, Behaviour::default());
    let mut driver = Driver::Sim(Box::new(SimDriver::new(net.clone(), 1 << 20)));
    let (listener, address) = net.listen();
    driver.listen(listener).unwrap();
    net.fail_accept(libc::EMFILE);
    let _client = address.connect().unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        driver.poll_events(None).unwrap();
        while let Some(event) = driver.next() {
            seen.push(match event {
                Event::AcceptPaused { error, .. } => error.raw_os_error(),
                Event::Accepted { .. } => None,
                other => panic!("{other:?}"),
            });
        }
    }
    assert_eq!(seen, [Some(libc::EMFILE), None]);
}

/// A stream moves to another driver between two requests, with unread bytes.
#[test]
fn detached_stream_loses_no_byte() {
    let _dog = watchdog("detached_stream_loses_no_byte");
    for kind in crate::common::ALL {
        let config = onrush_rt::driver::Config::default();
        let Some(mut one) = crate::common::rig_with(kind, &config, 9) else {
            continue;
        };
        let mut two = crate::common::rig_with(kind, &config, 9).expect("the driver is available");
        let mut random = Random::new(4);
        let (a, mut b) = one.pair(crate::common::Transport::Tcp4);
        let said = crate::common::pattern(6, 4000);
        let (mut sent, mut heard, mut ended) = (0, Vec::new(), false);
        let (mut here, mut there) = (&mut one, &mut two);
        let mut first = true;
        while !ended {
            here.driver.receive(b);
            let sender = if first { &mut *here } else { &mut *there };
            if sent < said.len() {
                let size = (1 + random.below(400) as usize).min(said.len() - sent);
                sent += sender.driver.send(a, &said[sent..][..size]).expect("taken");
            } else {
                sender.driver.shutdown_write(a);
            }
            let mut quiet = false;
            let mut paused = false;
            while !quiet {
                for event in here.poll() {
                    match event {
                        Event::Data { data, .. } => heard.extend_from_slice(&data),
                        Event::ReceiveStopped { .. } => quiet = true,
                        Event::End { .. } => (quiet, ended) = (true, true),
                        other => panic!("{other:?}"),
                    }
                }
                if !paused && !quiet {
                    paused = true;
                    quiet = here.driver.pause(b);
                }
            }
            let socket = here.driver.detach(b).expect("open");
            b = there.driver.attach(socket, 5).expect("attached");
            std::mem::swap(&mut here, &mut there);
            first = !first;
        }
        assert!(heard == said, "{kind:?}");
    }
}
