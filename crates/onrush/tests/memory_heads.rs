//! Partial heads exhaust the receive memory: the oldest of the large ones are evicted first, and
//! complete requests get responses meanwhile.

use crate::common::gate::until;
use crate::common::memory::{MEMORY, assert_prompt, evicted, hello, limits, serve, status};
use crate::common::{ask, drivers, get, plain, resident_bytes, statuses, watchdog};
use onrush::{Metrics, sim::Simulation};
use onrush_rt::driver::sim::{Behaviour, Client};
use std::io::Write;

/// Together, the partial heads of the attackers are several times as large as the memory.
const ATTACKERS: usize = 400;
const HEAD_BYTES: usize = 30_000;

/// The first `bytes` bytes of a head.
fn partial_head(bytes: usize) -> Vec<u8> {
    let mut head = b"GET /x HTTP/1.1\r\nHost: t\r\n".to_vec();
    while head.len() < bytes {
        let field = bytes - head.len();
        head.extend_from_slice(b"X: ");
        head.resize(head.len() + field.clamp(5, 4000) - 5, b'x');
        head.extend_from_slice(b"\r\n");
    }
    head
}

#[test]
fn partial_heads_do_not_stop_a_real_server() {
    let _dog = watchdog("partial_heads_do_not_stop_a_real_server");
    // It measures the memory of the process.
    if testing::child::elsewhere(module_path!(), "partial_heads_do_not_stop_a_real_server") {
        return;
    }
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, hello, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let before = resident_bytes();
        // Slow clients with small heads: one began before all others, one between them.
        let slow = || {
            let mut stream = server.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n").unwrap();
            stream
        };
        let mut slow_clients = vec![slow()];
        assert_prompt(&mut established);
        let mut attackers = Vec::new();
        for number in 0..ATTACKERS {
            let mut stream = server.connect();
            stream.write_all(&partial_head(HEAD_BYTES)).unwrap();
            attackers.push(stream);
            if number == ATTACKERS / 2 {
                slow_clients.push(slow());
            }
            if number % 40 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
        }
        // A head may use twice its size in memory, and the reserve is not for heads.
        let all = (ATTACKERS * HEAD_BYTES) as u64;
        until(|| all - evicted(&metrics) * HEAD_BYTES as u64 <= MEMORY as u64);
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 2 * MEMORY + (16 << 20), "{grown}");
        // The newest, and those that hold little, get responses when their heads are complete.
        let youngest = attackers.pop().unwrap();
        for stream in slow_clients.iter_mut().chain([&mut { youngest }]) {
            stream.write_all(b"\r\n").unwrap();
            assert_eq!(status(stream), 200, "{driver:?}");
        }
        // The oldest have received a response with the reason of the eviction.
        let gone = evicted(&metrics) as usize;
        assert!((ATTACKERS / 2..ATTACKERS).contains(&gone), "{gone}");
        for stream in &mut attackers[..gone / 2] {
            assert_eq!(status(stream), 408, "{driver:?}");
        }
    }
}

#[test]
fn partial_heads_are_evicted_in_order_of_age_in_the_simulator() {
    for seed in 0..4 {
        let behaviour = Behaviour {
            split: true,
            delay: true,
            pipe_bytes: 64 << 10,
        };
        let (memory, limits) = (1 << 20, limits());
        let mut sim = Simulation::builder(seed)
            .limits(limits)
            .network(behaviour)
            .receive_memory(memory)
            .start(&hello);
        let established = sim.connect();
        assert!(ask(&mut sim, &established, &get("/")).ends_with("hello"));
        let slow = sim.connect();
        sim.send(&slow, b"GET / HTTP/1.1\r\nHost: t\r\n");
        let attackers: Vec<Client> = (0..100).map(|_| sim.connect()).collect();
        for attacker in &attackers {
            assert_eq!(sim.send(attacker, &partial_head(HEAD_BYTES)), HEAD_BYTES);
            sim.run();
            assert!(sim.receive_bytes() <= memory);
        }
        let gone = sim.counters().evicted.get() as usize;
        assert!((50..100).contains(&gone), "{gone}");
        assert!(ask(&mut sim, &established, &get("/")).ends_with("hello"));
        assert!(crate::common::is_served(&mut sim));
        assert!(ask(&mut sim, &slow, "\r\n").ends_with("hello"));
        for (number, attacker) in attackers.iter().enumerate() {
            match number < gone {
                true => assert_eq!(statuses(&attacker.receive().unwrap()), [408], "{number}"),
                false => assert!(
                    ask(&mut sim, attacker, "\r\n").ends_with("hello"),
                    "{number}"
                ),
            }
        }
        // No memory is held for evicted or completed requests.
        assert!(sim.receive_bytes() < 16 << 10);
    }
}

/// Small heads are evicted, too, if nothing else is left.
#[test]
fn small_heads_are_evicted_last() {
    let (memory, limits) = (1 << 20, limits());
    let behaviour = plain(64 << 10);
    let mut sim = Simulation::builder(1)
        .limits(limits)
        .network(behaviour)
        .receive_memory(memory)
        .start(&hello);
    let clients: Vec<Client> = (0..1_000).map(|_| sim.connect()).collect();
    for client in &clients {
        sim.send(client, &partial_head(1_000));
        assert!(sim.receive_bytes() <= memory);
    }
    let gone = sim.counters().evicted.get() as usize;
    assert!((100..900).contains(&gone), "{gone}");
    assert_eq!(statuses(&clients[0].receive().unwrap()), [408]);
    assert!(ask(&mut sim, &clients[999], "\r\n").ends_with("hello"));
    assert!(crate::common::is_served(&mut sim));
}
