//! Server-sent events: what is sent, when a comment is, and how they end.

use crate::common::{calm, plain};
use onrush::sse::{Event, Sse};
use onrush::{Limits, Request, sim::Simulation};
use onrush_rt::driver::sim::Client;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// HTTP/1.0, so that the content is not chunked.
const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

fn received(client: &Client) -> String {
    String::from_utf8(client.receive().unwrap()).unwrap()
}

#[test]
fn no_text_of_an_event_adds_a_field() {
    for (event, sent) in [
        (Event::new(""), "data: \n\n"),
        (
            Event::new("a\nb\r\nc\rd\n"),
            "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n",
        ),
        (Event::new("\r\n\n\r"), "data: \ndata: \ndata: \ndata: \n\n"),
        (
            Event::new("id: 7\n\nretry: 0"),
            "data: id: 7\ndata: \ndata: retry: 0\n\n",
        ),
        (
            Event::new(" ü:").event(" a:b"),
            "event:  a:b\ndata:  ü:\n\n",
        ),
        (
            Event::new("x")
                .id("")
                .retry(Duration::from_micros(2_500_999)),
            "id: \nretry: 2500\ndata: x\n\n",
        ),
        (Event::comment("a\rdata: b"), ": a\n: data: b\n\n"),
        (
            Event::comment("a").retry(Duration::ZERO),
            "retry: 0\n: a\n\n",
        ),
    ] {
        assert_eq!(event.to_string(), sent);
    }
}

#[test]
fn a_name_or_id_with_several_lines_is_a_mistake() {
    let mistakes: [fn() -> Event; 4] = [
        || Event::new("").event("a\nb"),
        || Event::new("").event("a\rb"),
        || Event::new("").id("1\n"),
        || Event::new("").id("\0"),
    ];
    for (index, mistake) in mistakes.into_iter().enumerate() {
        assert!(std::panic::catch_unwind(mistake).is_err(), "{index}");
    }
}

/// Events that were given, and then an error or the end.
struct Given(VecDeque<io::Result<Event>>);

impl futures_core::Stream for Given {
    type Item = io::Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.pop_front())
    }
}

#[test]
fn a_stream_is_sent_to_its_end_and_an_error_resets_the_connection() {
    async fn events(request: Request) -> Sse {
        let mut events = VecDeque::from([Ok(Event::new("1")), Ok(Event::new("2"))]);
        if request.path() == "/fails" {
            events.push_back(Err(io::Error::other("the source has failed")));
        }
        Sse::stream(Given(events))
    }
    let mut sim = calm(&events, Limits::default());
    let client = sim.connect();
    sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = received(&client);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(
        response.contains("\r\nContent-Type: text/event-stream\r\n"),
        "{response}"
    );
    assert!(
        response.contains("\r\nCache-Control: no-store\r\n"),
        "{response}"
    );
    assert!(
        response.contains("data: 1\n\n") && response.ends_with("data: 2\n\n\r\n0\r\n\r\n"),
        "{response}"
    );
    let client = sim.connect();
    sim.send(&client, b"GET /fails HTTP/1.1\r\nHost: a\r\n\r\n");
    // The simulated network reports a reset as an error.
    let rest = client.receive().unwrap_or_default();
    assert!(!rest.ends_with(b"0\r\n\r\n") && client.at_end());
}

/// One event after 25 s, and then none.
async fn quiet(request: Request) -> Sse {
    let (mut sender, events) = Sse::channel(100);
    let worker = request.worker().clone();
    let task = request.worker().spawn(async move {
        worker.sleep(Duration::from_secs(25)).await;
        let _ = sender.send(Event::new("25 s")).await;
        std::future::pending::<()>().await;
    });
    task.detach();
    events
        .keep_alive(Duration::from_secs(10))
        .until(request.draining())
}

#[test]
fn the_head_is_sent_at_once_and_comments_follow_each_silence() {
    let mut sim = calm(&quiet, Limits::default());
    let client = sim.connect();
    sim.send(&client, GET);
    assert!(received(&client).ends_with("\r\n\r\n"));
    for (seconds, sent) in [
        (9, ""),
        (2, ":\n\n"),
        (10, ":\n\n"),
        (5, "data: 25 s\n\n"),
        (8, ""),
        (2, ":\n\n"),
        (100, &":\n\n".repeat(10)),
    ] {
        sim.advance(Duration::from_secs(seconds));
        assert_eq!(received(&client), sent, "after {seconds} s");
    }
}

#[test]
fn a_drain_ends_the_events_that_wait_for_it() {
    let mut sim = calm(&quiet, Limits::default());
    let client = sim.connect();
    sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!received(&client).is_empty());
    sim.drain();
    sim.run();
    assert_eq!(received(&client), "0\r\n\r\n");
    assert!(client.at_end());
}

#[test]
fn a_sender_waits_for_a_client_that_does_not_read_and_fails_when_it_is_gone() {
    let (sent, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (sent_here, failed_here) = (sent.clone(), failed.clone());
    let endless = move |request: Request| {
        let (sent, failed) = (sent.clone(), failed.clone());
        let (mut sender, events) = Sse::channel(1000);
        let task = request.worker().spawn(async move {
            let event = Event::new("x".repeat(92));
            loop {
                match sender.send(event.clone()).await {
                    Ok(()) => sent.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
                        failed.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                };
            }
        });
        task.detach();
        async move { events }
    };
    let mut sim = Simulation::builder(1)
        .network(plain(10_000))
        .start(&endless);
    let client = sim.connect();
    sim.send(&client, GET);
    // What the network and the sender hold is bounded; the engine holds a part as well.
    let waiting = sent_here.load(Ordering::Relaxed);
    assert!((100..2000).contains(&waiting), "{waiting}");
    sim.run();
    assert_eq!(sent_here.load(Ordering::Relaxed), waiting);
    assert_eq!(failed_here.load(Ordering::Relaxed), 0);
    drop(client);
    sim.run();
    assert_eq!(failed_here.load(Ordering::Relaxed), 1);
}

#[test]
fn a_sender_that_waits_learns_that_the_response_has_ended() {
    let ended = Arc::new(AtomicUsize::new(0));
    let counter = ended.clone();
    let waits = move |request: Request| {
        let (counter, (mut sender, events)) = (counter.clone(), Sse::channel(100));
        let task = request.worker().spawn(async move {
            sender.closed().await;
            counter.fetch_add(1, Ordering::Relaxed);
        });
        task.detach();
        let events = events.until(request.draining());
        async move { events }
    };
    let ends: [fn(&mut Simulation, Client); 2] =
        [|_, client| drop(client), |sim, _client| sim.drain()];
    for (index, end) in ends.into_iter().enumerate() {
        let mut sim = calm(&waits, Limits::default());
        let client = sim.connect();
        sim.send(&client, GET);
        sim.advance(Duration::from_secs(600));
        assert_eq!(ended.load(Ordering::Relaxed), index);
        end(&mut sim, client);
        sim.run();
        assert_eq!(ended.load(Ordering::Relaxed), index + 1);
    }
    // `HEAD` has no content.
    let mut sim = calm(&waits, Limits::default());
    let client = sim.connect();
    sim.send(&client, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(received(&client).ends_with("\r\n\r\n"));
    assert_eq!(ended.load(Ordering::Relaxed), 3);
}
