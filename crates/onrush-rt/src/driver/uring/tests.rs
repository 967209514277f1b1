//! Tests that play the part of the kernel: the end of a pause, and the end of the driver.

use super::*;
use crate::driver::Event;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// What an owner may do when the last bytes arrive together with the end of a cancelled
/// receive.
enum Then {
    Nothing,
    Close,
    Receive,
    PauseAgain,
}

/// The events after those bytes, or `None` where io_uring is refused.
fn after_last_bytes(then: &Then) -> Option<Vec<Event>> {
    let mut driver = Setup::LADDER
        .iter()
        .find_map(|&setup| Uring::new(setup, &Config::default()).ok())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, _theirs) = pair.unwrap();
    let id = driver.attach(Socket::Os(ours), 1).unwrap();
    driver.receive(id);
    // As if armed and cancelled; the test plays the kernel's part, with the first buffer.
    driver.submissions.clear();
    driver.streams.get_mut(id).unwrap().receive = Receive::Armed;
    assert!(!driver.pause(id));
    driver.submissions.clear();
    const BUFFER: u32 = 1;
    let event = driver.on_receive(id.index, id.generation, 3, BUFFER);
    assert!(matches!(event, Some(Event::Data { data, .. }) if data.len() == 3));
    match then {
        Then::Nothing => {}
        Then::Close => driver.close(id),
        Then::Receive => driver.receive(id),
        Then::PauseAgain => assert!(!driver.pause(id), "a `ReceiveStopped` is due"),
    }
    Some(std::iter::from_fn(|| driver.next()).collect())
}

/// Drops the driver with a receive in the ring, and returns whether its posted blocks are used
/// again. `None` where io_uring is refused.
fn blocks_are_used_again(cancel_fails: Option<i32>) -> Option<bool> {
    let config = Config {
        ring_buffers: 4,
        ..Config::default()
    };
    let mut driver = Setup::LADDER
        .iter()
        .find_map(|&setup| Uring::new(setup, &config).ok())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.unwrap();
    let id = driver.attach(Socket::Os(ours), 1).unwrap();
    driver.receive(id);
    for _ in 0..3 {
        driver.poll_events(Some(Duration::ZERO)).unwrap();
        while driver.next().is_some() {}
    }
    assert_eq!(driver.streams.get_mut(id).unwrap().receive, Receive::Armed);
    let posted = driver.buffers.addresses();
    assert_eq!(posted.len(), 4);
    let pool = driver.pool().clone();
    let used_bytes = pool.budget().used_bytes();
    driver.cancel_fails = cancel_fails;
    drop(driver);
    assert_eq!(pool.budget().used_bytes(), used_bytes, "kept, or leaked");
    let _ = rustix::io::write(&theirs, b"late");
    let blocks: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
    let again = |block: &crate::buf::Block| posted.contains(&block.as_ptr());
    assert!(blocks.iter().all(again) || !blocks.iter().any(again));
    Some(again(&blocks[0]))
}

#[test]
fn buffers_that_the_kernel_may_still_have_are_leaked() {
    for (cancel_fails, again) in [
        (None, true),
        (Some(libc::ETIME), false),
        (Some(libc::EINVAL), false),
    ] {
        match blocks_are_used_again(cancel_fails) {
            Some(found) => assert_eq!(found, again, "{cancel_fails:?}"),
            None => println!("skipped: io_uring is refused"),
        }
    }
}

#[test]
fn stopped_event_follows_last_data_unless_resumed() {
    for (then, quiet) in [
        (Then::Nothing, 1),
        (Then::Close, 0),
        (Then::Receive, 0),
        (Then::PauseAgain, 1),
    ] {
        let Some(events) = after_last_bytes(&then) else {
            println!("skipped: io_uring is refused");
            return;
        };
        assert_eq!(events.len(), quiet, "{events:?}");
        assert!(
            events
                .iter()
                .all(|e| matches!(e, Event::ReceiveStopped { .. }))
        );
    }
}

/// Sends data on many streams with a budget of a few blocks, and frees one block per iteration.
/// Returns the order in which the streams were served, and the number of completions that it took.
/// `None` where io_uring is refused.
fn serve_with_few_blocks(streams: u64) -> Option<(Vec<u64>, u32)> {
    let config = Config {
        ring_buffers: 2,
        ring_buffer_bytes: 4096,
        receive_bytes_max: 5 * 4096,
        ..Config::default()
    };
    let mut driver = Setup::LADDER
        .iter()
        .find_map(|&setup| Uring::new(setup, &config).ok())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let mut peers = Vec::new();
    for token in 0..streams {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.unwrap();
        let id = driver.attach(Socket::Os(ours), token).unwrap();
        driver.receive(id);
        peers.push(theirs);
    }
    driver.poll_events(Some(Duration::ZERO)).unwrap();
    assert!(driver.next().is_none(), "nothing was sent yet");
    for theirs in &peers {
        assert_eq!(rustix::io::write(theirs, b"data").unwrap(), 4);
    }
    let (mut order, mut held, mut completions) = (Vec::new(), VecDeque::new(), 0);
    for _ in 0..10 * streams {
        let moment = Duration::from_millis(1);
        driver.poll_events(Some(moment)).unwrap();
        while let Some(event) = driver.next() {
            let Event::Data { token, data, .. } = event else {
                panic!("{event:?}");
            };
            order.push(token);
            held.push_back(data);
        }
        completions += driver.taken;
        held.pop_front();
    }
    Some((order, completions))
}

#[test]
fn streams_that_wait_for_a_buffer_are_served_in_order_and_not_retried_all_at_once() {
    const STREAMS: u64 = 100;
    let Some((order, completions)) = serve_with_few_blocks(STREAMS) else {
        println!("skipped: io_uring is refused");
        return;
    };
    assert_eq!(order, (0..STREAMS).collect::<Vec<_>>());
    // Retrying all for each block would take thousands.
    assert!(u64::from(completions) <= 5 * STREAMS, "{completions}");
}
