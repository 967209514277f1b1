//! A stream of requests gives the same events, however the bytes are split.

use crate::Choices;
use onrush_proto::trace::{Event, drive};

/// Checks one input.
///
/// # Panics
/// If what the module promises does not hold.
pub fn check_input(input: &[u8]) {
    let Some((choices, bytes)) = Choices::take(input) else {
        return;
    };
    let limits = choices.limits();
    // A head in small pieces is parsed again at each line end, not at each piece. The added line
    // end makes the parser see all of the input.
    let bytes = [bytes, b"\n"].concat();
    let whole = drive(&bytes, &[], &limits);
    check(&whole);
    assert_eq!(drive(&bytes, &choices.splits(bytes.len()), &limits), whole);
    let each: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(drive(&bytes, &each, &limits), whole);
}

/// Checks that the events come in a valid order.
fn check(events: &[Event]) {
    let mut open = false;
    for (at, event) in events.iter().enumerate() {
        let last = at + 1 == events.len();
        match event {
            Event::Request(_) => assert!(
                !std::mem::replace(&mut open, true),
                "a request within another"
            ),
            Event::Body(data) => assert!(open && !data.is_empty()),
            Event::End(_) => assert!(
                std::mem::replace(&mut open, false),
                "an end without a request"
            ),
            Event::Rejected(reject) => {
                assert!((400..=599).contains(&reject.status));
                assert!(
                    matches!(events[at + 1..], [Event::Responded(_)]),
                    "events after the last response"
                );
            }
            Event::Responded(_) => {}
            Event::Eof(_) => assert!(last),
        }
    }
}
