//! Drivers that run out of buffers, completion queue entries, submission queue entries or budget.

use crate::common::{ALL, KERNEL, Kind, Rig, Transport, pattern, rig_with, watchdog, whose};
use onrush_rt::buf::Buf;
use onrush_rt::driver::{Config, Event};
use std::time::{Duration, Instant};

/// Connects `count` pairs. Each client sends `bytes` of its own pattern and closes; all servers
/// receive at the same time. Checks the bytes that each server received.
fn all_at_once(rig: &mut Rig, transport: Transport, count: u64, bytes: usize) {
    let mut servers = Vec::new();
    for token in 0..count {
        let (client, server) =
            crate::common::sockets(transport, rig.net.as_ref()).expect("connected");
        let server = rig.driver.attach(server, token).expect("attached");
        let client = rig.driver.attach(client, u64::MAX >> 1).expect("attached");
        let said = pattern(token, bytes);
        let mut sent = 0;
        while sent < bytes {
            sent += rig.driver.send(client, &said[sent..]).expect("taken");
        }
        rig.driver.close(client);
        servers.push(server);
    }
    let mut got = vec![Vec::new(); servers.len()];
    let mut open = servers.len();
    for server in &servers {
        rig.driver.receive(*server);
    }
    while open > 0 {
        rig.driver
            .poll_events(Some(Duration::from_millis(20)))
            .expect("the poll succeeds");
        while let Some(event) = rig.driver.next() {
            let (stream, token) = whose(&event).expect("an event of a stream");
            assert_eq!(stream, servers[token as usize]);
            match event {
                Event::Data { data, .. } => got[token as usize].extend_from_slice(&data),
                Event::End { result, .. } => {
                    result.expect("an orderly end");
                    rig.driver.close(stream);
                    open -= 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    for (token, got) in got.iter().enumerate() {
        assert!(*got == pattern(token as u64, bytes), "{token}");
    }
}

#[test]
fn two_tiny_buffers_for_fifty_connections() {
    let _dog = watchdog("two_tiny_buffers_for_fifty_connections");
    let config = Config {
        ring_buffers: 2,
        ring_buffer_bytes: 64,
        epoll_buffer_bytes: 64,
        ..Config::default()
    };
    for kind in ALL {
        if let Some(mut rig) = rig_with(kind, &config, 5) {
            all_at_once(&mut rig, Transport::Tcp4, 50, 3000);
            all_at_once(&mut rig, Transport::Unix, 50, 3000);
        }
    }
}

/// 1,200 streams with 16 buffers each: in one poll, more submissions than the submission queue
/// holds, and more than twice the completions that the completion queue holds. Multishot operations
/// end early.
#[test]
fn completion_queue_overflow_loses_nothing() {
    let _dog = watchdog("completion_queue_overflow_loses_nothing");
    let config = Config {
        ring_buffers: 32768,
        ring_buffer_bytes: 64,
        epoll_buffer_bytes: 64,
        ..Config::default()
    };
    for kind in KERNEL {
        if let Some(mut rig) = rig_with(kind, &config, 5) {
            all_at_once(&mut rig, Transport::Unix, 1200, 1024);
        }
    }
}

/// Memory for two receive buffers, both held by their owner. Other streams get none, and the driver
/// neither spins nor prevents the worker from sleeping. A released buffer makes receiving continue.
#[test]
fn exhausted_budget_waits_without_spinning() {
    let _dog = watchdog("exhausted_budget_waits_without_spinning");
    let config = Config {
        ring_buffers: 2,
        ring_buffer_bytes: 4096,
        epoll_buffer_bytes: 4096,
        receive_bytes_max: 2 * 4096 + 100,
    };
    for kind in KERNEL {
        let Some(mut rig) = rig_with(kind, &config, 5) else {
            continue;
        };
        let pairs: Vec<_> = (0..5).map(|_| rig.pair(Transport::Unix)).collect();
        for (client, server) in &pairs {
            assert_eq!(rig.driver.send(*client, b"mail").unwrap(), 4);
            rig.driver.receive(*server);
        }
        let mut held: Vec<Buf> = Vec::new();
        let take = |event: Event, held: &mut Vec<Buf>| match event {
            Event::Data { data, .. } => {
                assert_eq!(&*data, b"mail");
                held.push(data);
            }
            other => panic!("{other:?}"),
        };
        while held.len() < 2 {
            for event in rig.poll() {
                take(event, &mut held);
            }
        }
        let (start, cpu) = (Instant::now(), crate::common::cpu_time());
        let mut polls = 0;
        while start.elapsed() < Duration::from_millis(300) {
            rig.driver.poll_events(None).unwrap();
            assert!(rig.driver.next().is_none(), "{kind:?}");
            assert!(!rig.driver.has_ready(), "{kind:?} prevents sleeping");
            polls += 1;
        }
        println!(
            "{kind:?}: {polls} polls, {:?}",
            crate::common::cpu_time() - cpu
        );
        assert!(polls < 3000, "{kind:?} spins: {polls} polls in 300 ms");
        let mut all = 2;
        while all < 5 {
            held.clear();
            for event in rig.poll() {
                take(event, &mut held);
            }
            all += held.len();
        }
    }
}

/// A stream that is parked because there are no buffers may be paused, resumed and closed.
#[test]
fn parked_stream_may_be_paused_resumed_and_closed() {
    let _dog = watchdog("parked_stream_may_be_paused_resumed_and_closed");
    let config = Config {
        ring_buffers: 1,
        ring_buffer_bytes: 4096,
        epoll_buffer_bytes: 4096,
        receive_bytes_max: 4096 + 100,
    };
    for kind in KERNEL {
        let Some(mut rig) = rig_with(kind, &config, 5) else {
            continue;
        };
        let pairs: Vec<_> = (0..4).map(|_| rig.pair(Transport::Unix)).collect();
        let mut held = None;
        for (at, (client, server)) in pairs.iter().enumerate() {
            assert_eq!(rig.driver.send(*client, &[at as u8]).unwrap(), 1);
            rig.driver.receive(*server);
            if at == 0 {
                rig.until(|_, event| match event {
                    Event::Data { data, .. } => {
                        held = Some(data);
                        true
                    }
                    _ => false,
                });
            }
        }
        assert!(
            rig.poll_until_idle().is_empty(),
            "no buffer to receive into"
        );
        let server = |at: usize| pairs[at].1;
        for _ in 0..5 {
            assert!(rig.driver.pause(server(1)), "no operation is in progress");
            rig.poll_until_idle();
            rig.driver.receive(server(1));
            rig.poll_until_idle();
        }
        assert!(rig.driver.pause(server(2)));
        let mut byte = [9];
        assert_eq!(rig.driver.recv(server(2), &mut byte).unwrap(), 1);
        assert_eq!(byte, [2]);
        rig.driver.close(server(3));
        assert!(held.take().is_some());
        rig.until(|_, event| match event {
            Event::Data { stream, data, .. } => {
                assert_eq!((stream, &*data), (server(1), &[1][..]));
                true
            }
            other => panic!("{other:?}"),
        });
        assert!(rig.poll_until_idle().is_empty());
    }
}

/// Buffer views outlive their stream and the driver that received them.
#[test]
fn received_bytes_outlive_their_driver() {
    let _dog = watchdog("received_bytes_outlive_their_driver");
    for kind in ALL {
        let Some(mut rig) = rig_with(kind, &Config::default(), 5) else {
            continue;
        };
        let (a, b) = rig.pair(Transport::Unix);
        rig.driver.receive(b);
        let mut views = Vec::new();
        for round in 0..40_u8 {
            let sent = rig.driver.send(a, &[round; 100]).unwrap();
            let mut got = 0;
            while got < sent {
                for event in rig.poll() {
                    if let Event::Data { data, .. } = event {
                        got += data.len();
                        views.push((round, data.slice(0..data.len() / 2), data));
                    }
                }
            }
        }
        drop(rig);
        for (round, half, whole) in &views {
            assert!(whole.iter().all(|byte| byte == round));
            assert!(half.iter().all(|byte| byte == round));
        }
    }
}

/// A driver is dropped while operations are in progress. Peers see an end, the kernel writes
/// nothing to freed memory, and the next driver works.
#[test]
fn driver_dropped_with_operations_in_progress() {
    let _dog = watchdog("driver_dropped_with_operations_in_progress");
    for kind in KERNEL {
        for round in 0..20 {
            let Some(mut rig) = rig_with(kind, &Config::default(), 5) else {
                break;
            };
            let mut peers = Vec::new();
            for token in 0..20 {
                let (ours, theirs) = crate::common::sockets(Transport::Tcp4, None).unwrap();
                let id = rig.driver.attach(ours, token).unwrap();
                match token % 3 {
                    0 => rig.driver.want_read(id),
                    1 => rig.driver.receive(id),
                    _ => {
                        rig.driver.receive(id);
                        rig.driver.pause(id);
                    }
                }
                peers.push(theirs);
            }
            if round % 2 == 0 {
                rig.poll_until_idle();
            }
            drop(rig);
            for peer in peers {
                let onrush_rt::driver::Socket::Os(fd) = peer else {
                    panic!("a kernel socket")
                };
                let mut peer = std::net::TcpStream::from(fd);
                peer.set_nonblocking(false).unwrap();
                // The end, or a reset if bytes were unread. In any case the connection ends.
                let _ = std::io::Write::write(&mut peer, &[1; 5000]);
                let end = std::io::Read::read(&mut peer, &mut [0; 8]);
                assert!(matches!(end, Ok(0) | Err(_)));
            }
        }
    }
}

#[test]
#[should_panic = "range.end"]
fn slice_beyond_a_view_is_refused() {
    let mut rig = rig_with(Kind::Sim, &Config::default(), 5).expect("always");
    let (a, b) = rig.pair(Transport::Unix);
    assert!(rig.driver.send(a, b"short").unwrap() > 0);
    rig.driver.receive(b);
    rig.until(|_, event| {
        if let Event::Data { data, .. } = event {
            drop(data.slice(0..6));
        }
        false
    });
}

/// The end of a stream that its owner has paused. The owner requests the report.
#[test]
fn end_of_a_paused_stream_is_reported() {
    let _dog = watchdog("end_of_a_paused_stream_is_reported");
    for kind in ALL {
        for (resets, unread) in [(true, false), (true, true), (false, false)] {
            let Some(mut rig) = rig_with(kind, &Config::default(), 5) else {
                continue;
            };
            let (client, server) = rig.pair(Transport::Tcp4);
            rig.driver.receive(server);
            rig.poll_until_idle();
            if !rig.driver.pause(server) {
                rig.until(|_, event| matches!(event, Event::ReceiveStopped { .. }));
            }
            rig.driver.watch_end(server);
            if unread {
                assert_eq!(rig.driver.send(client, b"mail").unwrap(), 4);
            }
            assert!(
                rig.poll_until_idle().is_empty(),
                "{kind:?}: the stream has not ended"
            );
            match resets {
                true => rig.driver.reset(client),
                false => rig.driver.shutdown_write(client),
            }
            rig.until(|_, event| match event {
                Event::End { stream, result, .. } => {
                    assert_eq!(stream, server);
                    assert_eq!(result.is_err(), resets, "{kind:?}");
                    true
                }
                other => panic!("{kind:?}: {other:?}"),
            });
        }
    }
}

/// A stream that has ended but has unread bytes is not reported before they are received.
#[test]
fn paused_stream_with_unread_bytes_has_not_ended() {
    let _dog = watchdog("paused_stream_with_unread_bytes_has_not_ended");
    for kind in ALL {
        let Some(mut rig) = rig_with(kind, &Config::default(), 5) else {
            continue;
        };
        let (client, server) = rig.pair(Transport::Tcp4);
        assert!(rig.driver.pause(server));
        rig.driver.watch_end(server);
        assert_eq!(rig.driver.send(client, b"mail").unwrap(), 4);
        rig.driver.shutdown_write(client);
        assert!(rig.poll_until_idle().is_empty(), "{kind:?}");
        rig.driver.receive(server);
        let mut got = Vec::new();
        rig.until(|_, event| match event {
            Event::Data { data, .. } => {
                got.extend_from_slice(&data);
                false
            }
            Event::End { result, .. } => result.is_ok(),
            other => panic!("{kind:?}: {other:?}"),
        });
        assert_eq!(got, b"mail", "{kind:?}");
    }
}

/// The peer ends its side behind bytes that the owner does not receive, and fails later.
#[test]
fn failure_behind_the_end_of_a_paused_stream_is_reported() {
    let _dog = watchdog("failure_behind_the_end_of_a_paused_stream_is_reported");
    for kind in ALL {
        // The owner may also receive in between.
        for receives in [false, true] {
            let Some(mut rig) = rig_with(kind, &Config::default(), 5) else {
                continue;
            };
            let (client, server) = rig.pair(Transport::Tcp4);
            assert!(rig.driver.pause(server));
            rig.driver.watch_end(server);
            assert_eq!(rig.driver.send(client, b"mail").unwrap(), 4);
            rig.driver.shutdown_write(client);
            assert!(rig.poll_until_idle().is_empty(), "{kind:?}");
            if receives {
                let mut into = Vec::with_capacity(8);
                assert_eq!(rig.driver.recv_append(server, &mut into, 8).unwrap(), 4);
                rig.driver.watch_end(server);
            } else {
                rig.driver.reset(client);
            }
            rig.until(|_, event| match event {
                Event::End { result, .. } => {
                    assert_eq!(result.is_ok(), receives, "{kind:?}");
                    true
                }
                other => panic!("{kind:?}: {other:?}"),
            });
            assert!(rig.poll_until_idle().is_empty(), "{kind:?}: one end");
        }
    }
}

/// All receive memory is in use. The end of streams that wait for memory is reported, an orderly
/// end after the bytes before it were received.
#[test]
fn end_of_a_stream_that_waits_for_memory_is_reported() {
    let _dog = watchdog("end_of_a_stream_that_waits_for_memory_is_reported");
    let config = Config {
        ring_buffers: 1,
        ring_buffer_bytes: 4096,
        epoll_buffer_bytes: 4096,
        receive_bytes_max: 4096 + 100,
    };
    for kind in KERNEL {
        for (resets, unread) in [(true, true), (false, false), (false, true)] {
            let Some(mut rig) = rig_with(kind, &config, 5) else {
                continue;
            };
            let (holder, held) = rig.pair(Transport::Tcp4);
            let (client, server) = rig.pair(Transport::Tcp4);
            assert_eq!(rig.driver.send(holder, b"mail").unwrap(), 4);
            rig.driver.receive(held);
            let mut kept = None;
            rig.until(|_, event| match event {
                Event::Data { data, .. } => {
                    kept = Some(data);
                    true
                }
                _ => false,
            });
            rig.driver.receive(server);
            if unread {
                assert_eq!(rig.driver.send(client, b"mail").unwrap(), 4);
            }
            assert!(rig.poll_until_idle().is_empty(), "{kind:?}: no memory");
            match resets {
                true => rig.driver.reset(client),
                false => rig.driver.shutdown_write(client),
            }
            rig.until(|_, event| match event {
                Event::Data { stream, data, .. } => {
                    assert_eq!((stream, &*data), (server, &b"mail"[..]), "{kind:?}");
                    assert!(unread, "{kind:?}");
                    false
                }
                Event::End { stream, result, .. } => {
                    assert_eq!(stream, server);
                    assert_eq!(result.is_err(), resets, "{kind:?}");
                    true
                }
                other => panic!("{kind:?}: {other:?}"),
            });
            assert_eq!(kept.as_deref(), Some(&b"mail"[..]));
        }
    }
}
