//! Tests of rare states: generations that start again, and streams that cannot be watched.

use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// A server that opens and closes 50,000 connections a second gets here within a day.
#[test]
fn a_place_used_two_thousand_million_times_is_no_listener() {
    let mut driver = Epoll::new(&Config::default()).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let first = driver.attach(Socket::Os(pair().0), 1).unwrap();
    driver.close(first);
    for generation in [GENERATION_MASK - 1, GENERATION_MASK, 0] {
        if generation > 0 {
            driver.streams[0].generation = generation;
        }
        let (ours, theirs) = pair();
        let stream = driver.attach(Socket::Os(ours), 2).unwrap();
        assert_eq!(
            stream,
            StreamId {
                index: 0,
                generation
            }
        );
        driver.receive(stream);
        direct::send(theirs.as_fd(), b"x").unwrap();
        driver.poll_events(Some(Duration::from_secs(10))).unwrap();
        let event = driver.next();
        assert!(matches!(event, Some(Event::Data { .. })), "{event:?}");
        driver.close(stream);
    }
}

/// The kernel may refuse to watch a stream when it has no memory, as it refuses a file.
#[test]
fn who_waits_on_a_stream_that_cannot_be_watched_is_woken() {
    let mut driver = Epoll::new(&Config::default()).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let stream = driver.attach(Socket::Os(file.into()), 1).unwrap();
    let events = |driver: &mut Epoll| {
        driver.poll_events(Some(Duration::ZERO)).unwrap();
        (0..4).find_map(|_| driver.next())
    };
    driver.want_write(stream);
    let mut event = events(&mut driver);
    event = event.or_else(|| events(&mut driver));
    assert!(matches!(event, Some(Event::Writable { .. })), "{event:?}");
    driver.want_write(stream);
    let event = events(&mut driver);
    assert!(matches!(event, Some(Event::Writable { .. })), "{event:?}");
    driver.want_read(stream);
    let event = events(&mut driver);
    assert!(matches!(event, Some(Event::Readable { .. })), "{event:?}");
}
