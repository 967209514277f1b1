//! RFC 9110 §14: range requests; §13.1.5: If-Range.

use onrush_proto::{
    etag::EntityTag,
    range::{MEMBERS_MAX, Requested, if_range, parse, write_content_range, write_unsatisfied},
};

fn ranges(value: &str, size: u64) -> Vec<std::ops::Range<u64>> {
    match parse(value.as_bytes(), size) {
        Requested::Satisfiable(ranges) => {
            let list: Vec<_> = ranges.iter().collect();
            assert_eq!(list.len(), ranges.len());
            assert_eq!(ranges.single().is_some(), list.len() == 1);
            list
        }
        other => panic!("{value} of {size}: {other:?}"),
    }
}

#[test]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "a list of one range is meant"
)]
fn satisfiable() {
    let rows: [(&str, u64, &[std::ops::Range<u64>]); 23] = [
        ("bytes=0-0", 10, &[0..1]),
        ("bytes=0-499", 10_000, &[0..500]),
        ("bytes=9-9", 10, &[9..10]),
        ("bytes=9-10", 10, &[9..10]),
        ("bytes=5-", 10, &[5..10]),
        ("bytes=0-", 10, &[0..10]),
        ("bytes=-3", 10, &[7..10]),
        ("bytes=-10", 10, &[0..10]),
        ("bytes=-11", 10, &[0..10]),
        ("BYTES= 1-2 ", 10, &[1..3]),
        ("bytes=2-99999999999999999999999999", 10, &[2..10]),
        ("bytes=-99999999999999999999999999", 10, &[0..10]),
        (
            "bytes=18446744073709551614-18446744073709551615",
            u64::MAX,
            &[u64::MAX - 1..u64::MAX],
        ),
        ("bytes=0-0,-1", 10, &[0..1, 9..10]),
        ("bytes=8-9, 0-1", 10, &[8..10, 0..2]),
        ("bytes=0-1,,4-5,", 10, &[0..2, 4..6]),
        // Ranges beyond the end are ignored if others are satisfiable.
        ("bytes=0-1,10-20", 10, &[0..2]),
        ("bytes=10-20,-0,3-4", 10, &[3..5]),
        // Overlapping and adjacent ranges become one, in the place of the earliest.
        ("bytes=0-4,3-6", 10, &[0..7]),
        ("bytes=0-1,2-3", 10, &[0..4]),
        ("bytes=6-7,0-1,5-5,1-2", 10, &[5..8, 0..3]),
        ("bytes=0-1,8-9,4-5,1-4", 10, &[0..6, 8..10]),
        ("bytes=1-1,3-3,5-5,2-4", 10, &[1..6]),
    ];
    for (value, size, expected) in rows {
        assert_eq!(ranges(value, size), expected, "{value} of {size}");
    }
}

#[test]
fn ignored() {
    let rows = [
        ("", 10),
        ("bytes", 10),
        ("bytes=", 10),
        ("bytes=,", 10),
        ("bytes 0-1", 10),
        ("lines=0-1", 10),
        ("bytes=-", 10),
        ("bytes=1", 10),
        ("bytes=a-b", 10),
        ("bytes=+1-2", 10),
        ("bytes=1--2", 10),
        ("bytes=--2", 10),
        ("bytes=1 - 2", 10),
        ("bytes=0x1-2", 10),
        ("bytes=1-2x", 10),
        ("bytes=2-1", 10),
        ("bytes=0-1;2-3", 10),
        ("bytes=0-1,x", 10),
        ("bytes=0-1,5-4", 10),
        ("bytes=10-,x", 10),
        // Several ranges that together cover the whole.
        ("bytes=0-4,5-9", 10),
        ("bytes=0-,0-,0-", 10),
        ("bytes=-5,0-", 10),
        // No range can express the whole of an empty representation.
        ("bytes=-5", 0),
    ];
    for (value, size) in rows {
        assert_eq!(
            parse(value.as_bytes(), size),
            Requested::Whole,
            "{value} of {size}"
        );
    }
}

#[test]
fn unsatisfiable() {
    let rows = [
        ("bytes=10-", 10),
        ("bytes=10-20", 10),
        ("bytes=-0", 10),
        ("bytes=10-11,20-,-0", 10),
        ("bytes=99999999999999999999999999-", 10),
        ("bytes=0-", 0),
        ("bytes=0-0", 0),
        ("bytes=-0", 0),
    ];
    for (value, size) in rows {
        assert_eq!(
            parse(value.as_bytes(), size),
            Requested::Unsatisfiable,
            "{value} of {size}"
        );
    }
}

/// Range amplification: no request returns more bytes than the file, or more ranges than the limit.
#[test]
fn never_more_than_the_file() {
    let members = |count: usize| {
        let list: Vec<_> = (0..count).map(|i| format!("{}-{}", 2 * i, 2 * i)).collect();
        format!("bytes={}", list.join(","))
    };
    assert_eq!(ranges(&members(MEMBERS_MAX), 1000).len(), MEMBERS_MAX);
    assert_eq!(
        parse(members(MEMBERS_MAX + 1).as_bytes(), 1000),
        Requested::Whole
    );

    let mut seed: u64 = 7;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for _ in 0..5_000 {
        let size = 1 + random(60);
        let mut asked = vec![false; size as usize];
        let list: Vec<_> = (0..1 + random(12))
            .map(|_| {
                let first = random(70);
                let last = first + random(8);
                let end = (last + 1).min(size) as usize;
                asked
                    .iter_mut()
                    .take(end)
                    .skip(first as usize)
                    .for_each(|byte| *byte = true);
                format!("{first}-{last}")
            })
            .collect();
        let value = format!("bytes={}", list.join(", "));
        let mut sent = vec![false; size as usize];
        match parse(value.as_bytes(), size) {
            Requested::Whole => sent.fill(true),
            Requested::Unsatisfiable => {}
            Requested::Satisfiable(ranges) => {
                for range in ranges.iter() {
                    for byte in range {
                        assert!(!sent[byte as usize], "{value} of {size} sends {byte} twice");
                        sent[byte as usize] = true;
                    }
                }
                assert_eq!(
                    ranges.total_bytes(),
                    sent.iter().filter(|byte| **byte).count() as u64
                );
            }
        }
        assert_eq!(sent, asked, "{value} of {size}");
    }
}

#[test]
fn content_range_values() {
    let mut out = Vec::new();
    write_content_range(&(0..500), 1234, &mut out);
    out.push(b'|');
    write_content_range(&(u64::MAX - 1..u64::MAX), u64::MAX, &mut out);
    out.push(b'|');
    write_unsatisfied(1234, &mut out);
    let expected = "bytes 0-499/1234|bytes 18446744073709551614-18446744073709551614/\
        18446744073709551615|bytes */1234";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn if_range_is_exact() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let strong = EntityTag::strong(b"x");
    let weak = EntityTag::weak(b"x");
    let rows = [
        ("\"x\"", strong, None, true),
        ("\"x\"", strong, Some(5), true),
        ("\"y\"", strong, None, false),
        ("\"x\"", None, Some(784_111_777), false),
        ("\"x\"", weak, None, false),
        ("W/\"x\"", weak, None, false),
        ("W/\"x\"", strong, None, false),
        ("\"x\", \"y\"", strong, None, false),
        ("*", strong, Some(784_111_777), false),
        ("x", strong, None, false),
        (date, strong, Some(784_111_777), true),
        (date, None, Some(784_111_776), false),
        (date, None, Some(784_111_778), false),
        (date, strong, None, false),
        ("", strong, Some(0), false),
    ];
    for (value, etag, modified_s, expected) in rows {
        assert_eq!(
            if_range(value.as_bytes(), etag, modified_s),
            expected,
            "{value} {etag:?}"
        );
    }
}
