//! Both sides of a connection send and receive at the same time, and switch at random between the
//! three ways of receiving. No byte may be lost, duplicated or reordered.

use crate::common::{KERNEL, Kind, Rig, Transport, pattern, rig_with, watchdog, whose};
use onrush_rt::driver::sim::Random;
use onrush_rt::driver::{Config, Event, StreamId};
use std::io;

const TRANSPORTS: [Transport; 3] = [Transport::Tcp4, Transport::Tcp6, Transport::Unix];

/// One side of a transfer. It sends and receives at the same time.
struct Side {
    id: StreamId,
    to_send: Vec<u8>,
    sent: usize,
    blocked: bool,
    received: Vec<u8>,
    ended: bool,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Buffers,
    /// Until `ReceiveStopped`.
    Quieting,
    Off,
    /// `recv` until it would block, then waiting for `Readable`.
    Reading,
    Waiting,
}

impl Side {
    fn new(id: StreamId, to_send: Vec<u8>) -> Side {
        Side {
            id,
            to_send,
            sent: 0,
            blocked: false,
            received: Vec::new(),
            ended: false,
            mode: Mode::Off,
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Data { data, .. } => {
                assert!(matches!(self.mode, Mode::Buffers | Mode::Quieting));
                assert!(!self.ended && !data.is_empty());
                self.received.extend_from_slice(&data);
            }
            Event::End { result, .. } => {
                result.expect("an orderly end");
                assert!(matches!(self.mode, Mode::Buffers | Mode::Quieting));
                (self.ended, self.mode) = (true, Mode::Off);
            }
            Event::ReceiveStopped { .. } => {
                assert_eq!(self.mode, Mode::Quieting);
                self.mode = Mode::Off;
            }
            Event::Readable { .. } => {
                if self.mode == Mode::Waiting {
                    self.mode = Mode::Reading;
                }
            }
            Event::Writable { .. } => self.blocked = false,
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, rig: &mut Rig, random: &mut Random) {
        while !self.blocked && self.sent < self.to_send.len() && !random.one_in(4) {
            let left = self.to_send.len() - self.sent;
            let size = 1 + random.below(left.min(90_000) as u64) as usize;
            match rig.driver.send(self.id, &self.to_send[self.sent..][..size]) {
                Ok(n) => {
                    self.sent += n;
                    if self.sent == self.to_send.len() {
                        rig.driver.shutdown_write(self.id);
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    rig.driver.want_write(self.id);
                    self.blocked = true;
                }
            }
        }
        if self.ended {
            return;
        }
        match self.mode {
            Mode::Off if random.one_in(3) => {
                rig.driver.receive(self.id);
                self.mode = Mode::Buffers;
            }
            Mode::Off if random.one_in(3) => self.mode = Mode::Reading,
            Mode::Buffers if random.one_in(4) => {
                let quiet = rig.driver.pause(self.id);
                self.mode = if quiet { Mode::Off } else { Mode::Quieting };
            }
            // Resumes before the driver is quiet.
            Mode::Quieting if random.one_in(4) => {
                rig.driver.receive(self.id);
                self.mode = Mode::Buffers;
            }
            Mode::Reading => self.read(rig, random),
            Mode::Waiting if random.one_in(8) => {
                rig.driver.receive(self.id);
                self.mode = Mode::Buffers;
            }
            _ => {}
        }
    }

    fn read(&mut self, rig: &mut Rig, random: &mut Random) {
        let mut into = vec![0; 1 + random.below(20_000) as usize];
        match rig.driver.recv(self.id, &mut into) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.received.extend_from_slice(&into[..n]);
                if random.one_in(3) {
                    self.mode = Mode::Off;
                } else if random.one_in(3) {
                    rig.driver.want_read(self.id); // Also without a read that would block.
                    self.mode = Mode::Waiting;
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                rig.driver.want_read(self.id);
                self.mode = Mode::Waiting;
            }
        }
    }
}

/// Both sides send `bytes` each, in pieces of any size, and switch at random between the ways of
/// receiving. Every byte must arrive once and in order.
fn round_trip(rig: &mut Rig, transport: Transport, seed: u64, bytes: usize) {
    let mut random = Random::new(seed);
    let (a, b) = rig.pair(transport);
    let mut sides = [
        Side::new(a, pattern(2 * seed, bytes)),
        Side::new(b, pattern(2 * seed + 1, bytes)),
    ];
    while !sides.iter().all(|side| side.ended) {
        for side in &mut sides {
            side.step(rig, &mut random);
        }
        let wait = std::time::Duration::from_micros(random.below(300));
        rig.driver
            .poll_events(Some(wait))
            .expect("the poll succeeds");
        while let Some(event) = rig.driver.next() {
            let (stream, token) = whose(&event).expect("an event of a stream");
            let side = &mut sides[token as usize - 1];
            assert_eq!(stream, side.id);
            side.take(event);
        }
    }
    let [a, b] = &sides;
    let kind = rig.kind;
    assert!(a.received == b.to_send, "{kind:?}, {transport:?}, {seed}");
    assert!(b.received == a.to_send, "{kind:?}, {transport:?}, {seed}");
    rig.driver.close(a.id);
    rig.driver.close(b.id);
}

#[test]
fn switching_the_way_of_receiving_loses_no_byte() {
    let _dog = watchdog("switching_the_way_of_receiving_loses_no_byte");
    for kind in KERNEL {
        let Some(mut rig) = rig_with(kind, &Config::default(), 1) else {
            continue;
        };
        for seed in 1..=8 {
            for transport in TRANSPORTS {
                round_trip(&mut rig, transport, seed, 600_000);
            }
        }
    }
    for seed in 1..=150 {
        let mut rig = rig_with(Kind::Sim, &Config::default(), seed).expect("always");
        round_trip(&mut rig, Transport::Unix, seed, 150_000);
    }
}

#[test]
fn few_small_buffers_lose_no_byte() {
    let _dog = watchdog("few_small_buffers_lose_no_byte");
    let config = Config {
        ring_buffers: 2,
        ring_buffer_bytes: 300,
        epoll_buffer_bytes: 300,
        ..Config::default()
    };
    for kind in KERNEL {
        let Some(mut rig) = rig_with(kind, &config, 1) else {
            continue;
        };
        for seed in 1..=3 {
            round_trip(&mut rig, Transport::Tcp4, seed, 200_000);
        }
    }
}
