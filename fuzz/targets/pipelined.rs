//! A stream of requests: the same events, however the bytes are split on their way.

#![no_main]

use libfuzzer_sys::fuzz_target;
use onrush_fuzz::Choices;
use onrush_proto::trace::{Event, drive};

fuzz_target!(|input: &[u8]| {
    let Some((choices, bytes)) = Choices::take(input) else {
        return;
    };
    let limits = choices.limits();
    // A head that comes in crumbs is read again when a line ends, not at each crumb. With a line
    // end at the end of everything, all there is to see has been seen.
    let bytes = [bytes, b"\n"].concat();
    let whole = drive(&bytes, &[], &limits);
    check(&whole);
    assert_eq!(drive(&bytes, &choices.splits(bytes.len()), &limits), whole);
    let each: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(drive(&bytes, &each, &limits), whole);
});

/// Events come in an order that makes sense.
fn check(events: &[Event]) {
    let mut open = false;
    for (at, event) in events.iter().enumerate() {
        let last = at + 1 == events.len();
        match event {
            Event::Request(_) => assert!(!std::mem::replace(&mut open, true), "two at once"),
            Event::Body(data) => assert!(open && !data.is_empty()),
            Event::End(_) => assert!(std::mem::replace(&mut open, false), "an end of nothing"),
            Event::Rejected(reject) => {
                assert!((400..=599).contains(&reject.status));
                assert!(matches!(events[at + 1..], [Event::Responded(_)]), "read on");
            }
            Event::Responded(_) => {}
            Event::Eof(_) => assert!(last),
        }
    }
}
