//! Streams on every driver: bytes in both directions, ends, resets, slow readers, and switching
//! between the ways of receiving.

use crate::common::{ALL, KERNEL, Rig, Transport, on, pattern, whose};
use onrush_rt::driver::sim::Random;
use onrush_rt::driver::{Event, StreamId};
use std::io;

const TRANSPORTS: [Transport; 3] = [Transport::Tcp4, Transport::Tcp6, Transport::Unix];

/// Sends all of `bytes`, which must fit into the socket's buffer.
fn send_all(rig: &mut Rig, stream: StreamId, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let sent = rig.driver.send(stream, bytes).expect("taken");
        bytes = &bytes[sent..];
    }
}

#[test]
fn echo_and_half_close() {
    on(&ALL, "echo_and_half_close", |rig| {
        for transport in TRANSPORTS {
            let (client, server) = rig.pair(transport);
            let said = pattern(7, 10_000);
            send_all(rig, client, &said);
            rig.driver.shutdown_write(client);
            rig.driver.receive(server);
            let heard = rig.all_of(server);
            assert!(heard == said, "{transport:?} on {:?}", rig.kind);
            // The other direction continues.
            send_all(rig, server, &heard);
            rig.driver.receive(client);
            rig.driver.close(server);
            assert!(rig.all_of(client) == said);
            rig.driver.close(client);
        }
    });
}

#[test]
fn several_parts_are_sent_in_order() {
    on(&ALL, "several_parts_are_sent_in_order", |rig| {
        let (a, b) = rig.pair(Transport::Unix);
        let parts = [io::IoSlice::new(b"head "), io::IoSlice::new(b"and body")];
        let sent = rig.driver.send_vectored(a, &parts).expect("taken");
        rig.driver.close(a);
        rig.driver.receive(b);
        assert_eq!(rig.all_of(b), b"head and body"[..sent]);
    });
}

/// Also with an armed receive, when the ring holds the socket. After a FIN before the reset, the
/// peer would take an incomplete response for a complete one.
#[test]
fn reset_is_never_an_orderly_end() {
    on(&ALL, "reset_is_never_an_orderly_end", |rig| {
        for armed in [false, true] {
            let (a, b) = rig.pair(Transport::Tcp4);
            rig.driver.receive(b);
            if armed {
                rig.driver.receive(a);
                rig.driver.want_write(a);
            }
            rig.poll_until_idle();
            rig.driver.reset(a);
            rig.until(|_, event| match event {
                Event::End { stream, result, .. } if stream == b => {
                    let error = result.expect_err("a reset");
                    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
                    true
                }
                event => panic!("{event:?}"),
            });
            rig.driver.close(b);
        }
    });
}

#[test]
fn close_sends_the_end_during_any_operation() {
    on(&ALL, "close_sends_the_end_during_any_operation", |rig| {
        for what in 0..5 {
            for transport in TRANSPORTS {
                let (a, b) = rig.pair(transport);
                rig.driver.receive(b);
                match what {
                    0 => {}
                    1 => rig.driver.want_read(a),
                    _ => rig.driver.receive(a),
                }
                if what != 4 {
                    rig.poll_until_idle();
                }
                if what == 3 {
                    rig.driver.pause(a);
                }
                rig.driver.close(a);
                assert!(rig.all_of(b).is_empty());
                rig.driver.close(b);
            }
        }
        assert!(rig.poll_until_idle().is_empty());
    });
}

#[test]
fn bytes_and_end_before_receiving_began() {
    on(&ALL, "bytes_and_end_before_receiving_began", |rig| {
        for transport in TRANSPORTS {
            let (a, b) = rig.pair(transport);
            send_all(rig, a, b"last words");
            rig.driver.close(a);
            rig.poll_until_idle();
            rig.driver.receive(b);
            assert_eq!(rig.all_of(b), b"last words");
            rig.driver.close(b);
        }
    });
}

#[test]
fn bytes_received_during_a_pause_are_kept() {
    on(&ALL, "bytes_received_during_a_pause_are_kept", |rig| {
        for transport in TRANSPORTS {
            let (a, b) = rig.pair(transport);
            rig.driver.receive(b);
            rig.poll_until_idle();
            if !rig.driver.pause(b) {
                rig.until(
                    |_, event| matches!(event, Event::ReceiveStopped { stream, .. } if stream == b),
                );
            }
            send_all(rig, a, b"while you were away");
            assert!(rig.poll_until_idle().is_empty(), "paused");
            rig.driver.receive(b);
            let mut heard = Vec::new();
            rig.until(|_, event| match event {
                Event::Data { data, .. } => {
                    heard.extend_from_slice(&data);
                    heard.len() == b"while you were away".len()
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(heard, b"while you were away");
            rig.driver.close(a);
            rig.driver.close(b);
        }
    });
}

/// An empty socket becomes readable only when bytes arrive. A driver that reports it at once makes
/// the worker spin.
#[test]
fn drained_socket_is_not_readable() {
    type Take = fn(&mut Rig, StreamId) -> std::io::Result<usize>;
    let takers: [Take; 2] = [
        |rig, stream| rig.driver.recv(stream, &mut [0; 64]),
        |rig, stream| rig.driver.discard(stream, &mut [0; 64]),
    ];
    on(&ALL, "drained_socket_is_not_readable", |rig| {
        for (transport, take) in TRANSPORTS
            .iter()
            .flat_map(|&t| takers.map(|take| (t, take)))
        {
            let (a, b) = rig.pair(transport);
            for _ in 0..3 {
                rig.driver.want_read(b);
                send_all(rig, a, b"0123456789");
                rig.until(|_, event| matches!(event, Event::Readable { .. }));
                let mut taken = 0;
                let empty = loop {
                    match take(rig, b) {
                        Ok(bytes) => taken += bytes,
                        Err(error) => break error,
                    }
                };
                assert_eq!(empty.kind(), std::io::ErrorKind::WouldBlock);
                assert_eq!(taken, 10);
                rig.driver.want_read(b);
                assert!(
                    rig.poll_until_idle().is_empty(),
                    "{transport:?}: readable, but empty"
                );
            }
            rig.driver.close(a);
            rig.driver.close(b);
        }
    });
}

/// A request for readability that `receive` cancels must not be reported.
#[test]
fn receive_cancels_want_read() {
    on(&ALL, "receive_cancels_want_read", |rig| {
        let (a, b) = rig.pair(Transport::Tcp4);
        rig.driver.want_read(b);
        rig.poll_until_idle();
        rig.driver.receive(b);
        rig.poll_until_idle();
        send_all(rig, a, b"x");
        rig.driver.shutdown_write(a);
        let mut seen = Vec::new();
        rig.until(|_, event| {
            let over = matches!(event, Event::End { .. });
            assert!(!matches!(event, Event::Readable { .. }));
            seen.push(event);
            over
        });
        assert_eq!(seen.len(), 2, "{seen:?}");
        // A new request works.
        rig.driver.pause(b);
        assert_eq!(rig.driver.recv(b, &mut [0; 8]).unwrap(), 0);
    });
}

/// Room that appeared before a request for it is reported after the request.
#[test]
fn late_request_for_writable_is_reported() {
    on(&ALL, "late_request_for_writable_is_reported", |rig| {
        for transport in [Transport::Tcp4, Transport::Unix] {
            let (a, b) = rig.pair(transport);
            let piece = vec![1; 64 * 1024];
            for late in [false, true] {
                let mut fill = 0;
                loop {
                    match rig.driver.send(a, &piece) {
                        Ok(n) => fill += n,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                if !late {
                    rig.driver.want_write(a);
                }
                let mut reported = false;
                while fill > 0 {
                    let mut into = vec![0; 100_000];
                    match rig.driver.recv(b, &mut into) {
                        Ok(n) => fill -= n,
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                    }
                    let writable = |e: &Event| matches!(e, Event::Writable { .. });
                    reported |= rig.poll().iter().any(writable);
                }
                if late {
                    assert!(!reported, "reported without a request");
                    rig.poll_until_idle();
                    rig.driver.want_write(a);
                }
                if !reported {
                    rig.until(|_, event| matches!(event, Event::Writable { .. }));
                }
            }
            rig.driver.close(a);
            rig.driver.close(b);
        }
    });
}

#[test]
fn stale_ids_do_not_affect_the_new_stream_in_the_slot() {
    on(
        &ALL,
        "stale_ids_do_not_affect_the_new_stream_in_the_slot",
        |rig| {
            let (a, b) = rig.pair(Transport::Tcp4);
            rig.driver.receive(a);
            rig.driver.want_write(a);
            rig.driver.close(a);
            rig.driver.close(b);
            let (c, d) = rig.pair(Transport::Tcp4);
            rig.driver.receive(d);
            for stale in [a, b] {
                rig.driver.receive(stale);
                rig.driver.want_read(stale);
                rig.driver.want_write(stale);
                assert!(rig.driver.pause(stale));
                assert!(rig.driver.recv(stale, &mut [0; 8]).is_err());
                assert!(rig.driver.send(stale, b"?").is_err());
                rig.driver.shutdown_write(stale);
                rig.driver.reset(stale);
                rig.driver.close(stale);
                assert!(rig.driver.detach(stale).is_none());
                assert!(rig.driver.descriptor(stale).is_none());
            }
            let events = rig.poll_until_idle();
            assert!(events.is_empty(), "{events:?}");
            send_all(rig, c, b"still here");
            rig.driver.close(c);
            assert_eq!(rig.all_of(d), b"still here");
        },
    );
}

/// Every slot is reused repeatedly while operations of its predecessor are in progress.
#[test]
fn reused_slots_get_only_their_own_events() {
    on(&ALL, "reused_slots_get_only_their_own_events", |rig| {
        let mut random = Random::new(3);
        let mut open: Vec<(StreamId, u64)> = Vec::new();
        for token in 1..600_u64 {
            let (a, b) = crate::common::sockets(Transport::Unix, rig.net.as_ref()).unwrap();
            for (socket, token) in [(a, 2 * token), (b, 2 * token + 1)] {
                let id = rig.driver.attach(socket, token).unwrap();
                match random.below(4) {
                    0 => rig.driver.want_read(id),
                    1 => rig.driver.want_write(id),
                    _ => rig.driver.receive(id),
                }
                let _ = rig.driver.send(id, &token.to_le_bytes());
                open.push((id, token));
            }
            if random.one_in(2) {
                rig.driver
                    .poll_events(Some(std::time::Duration::ZERO))
                    .unwrap();
                while let Some(event) = rig.driver.next() {
                    let whose = whose(&event).expect("an event of a stream");
                    assert!(open.contains(&whose), "{event:?}");
                    // A close during a poll makes its remaining events stale.
                    if random.one_in(2) {
                        let other = random.below(open.len() as u64) as usize;
                        let (id, _) = open.swap_remove(other);
                        match random.below(4) {
                            0 => rig.driver.reset(id),
                            1 => {
                                rig.driver.pause(id);
                                rig.driver.close(id);
                            }
                            _ => rig.driver.close(id),
                        }
                    }
                }
            }
        }
    });
}

/// io_uring receives ahead: the bytes are in its completion queue then, and no longer in the
/// socket.
#[test]
fn bytes_that_no_event_has_delivered_are_unread() {
    on(&KERNEL, "bytes_that_no_event_has_delivered", |rig| {
        let (client, server) = rig.pair(Transport::Tcp4);
        rig.driver.receive(server);
        rig.poll_until_idle(); // The receive is in the kernel.
        assert!(!rig.driver.has_unread(server));
        send_all(rig, client, b"request");
        let wait = std::time::Duration::from_millis(20);
        rig.driver.poll_events(Some(wait)).expect("polled");
        assert!(rig.driver.has_unread(server), "{:?}", rig.kind);
        assert!(!rig.driver.has_unread(client));
        let event = rig.driver.next();
        assert!(matches!(event, Some(Event::Data { .. })), "{event:?}");
        assert!(!rig.driver.has_unread(server), "{:?}", rig.kind);
    });
}
