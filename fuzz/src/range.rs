//! A `Range` field for a given size, compared with a simple reference parser of RFC 9110 §14. The
//! other fields of conditional requests must not panic.

use crate::Choices;
use onrush_proto::{date, etag, range};

/// Checks one input.
///
/// # Panics
/// If what the module promises does not hold.
pub fn check_input(input: &[u8]) {
    let Some((choices, value)) = Choices::take(input) else {
        return;
    };
    let size = match choices.splits(300).first() {
        Some(&small) if small > 1 => small as u64,
        Some(_) => u64::MAX,
        None => 0,
    };
    let asked = range::parse(value, size);
    match (&asked, asked_for(value, size)) {
        (range::Requested::Whole, _) => {}
        (_, None) => panic!("a malformed field was parsed as {asked:?}"),
        (range::Requested::Unsatisfiable, Some(expected)) => assert_eq!(expected, []),
        (range::Requested::Satisfiable(ranges), Some(expected)) => {
            check(ranges, size);
            let mut found: Vec<(u64, u64)> = ranges.iter().map(|r| (r.start, r.end)).collect();
            found.sort();
            assert_eq!(found, expected);
        }
    }
    other_fields(value);
}

fn check(ranges: &range::Ranges, size: u64) {
    assert!((1..=range::MEMBERS_MAX).contains(&ranges.len()));
    assert_eq!(ranges.single().is_some(), ranges.len() == 1);
    assert!(ranges.total_bytes() <= size && ranges.total_bytes() > 0);
    for part in ranges.iter() {
        assert!(part.start < part.end && part.end <= size);
        let mut text = Vec::new();
        range::write_content_range(&part, size, &mut text);
        let expected = format!("bytes {}-{}/{size}", part.start, part.end - 1);
        assert_eq!(text, expected.as_bytes());
    }
}

/// The existing bytes that `value` requests, as separate ranges in order, ends excluded. `None` for
/// a malformed field.
fn asked_for(value: &[u8], size: u64) -> Option<Vec<(u64, u64)>> {
    let text = std::str::from_utf8(value).ok()?;
    let (unit, set) = text.split_once('=')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let mut wanted = Vec::new();
    for member in set
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']))
    {
        if member.is_empty() {
            continue;
        }
        let (first, last) = member.split_once('-')?;
        let (start, end) = match (number(first), number(last)) {
            _ if first.is_empty() => (u128::from(size).saturating_sub(number(last)?), size.into()),
            (Some(start), _) if last.is_empty() => (start, size.into()),
            (Some(start), Some(last)) if start <= last => (start, last.saturating_add(1)),
            _ => return None,
        };
        let end = end.min(size.into()) as u64;
        wanted.extend(
            u64::try_from(start)
                .ok()
                .filter(|start| *start < end)
                .map(|s| (s, end)),
        );
    }
    wanted.sort();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in wanted {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    Some(merged)
}

/// Numbers above 64 bits count as the largest one, because no object is that long.
fn number(digits: &str) -> Option<u128> {
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| digits.parse().unwrap_or(u128::MAX).min(u64::MAX.into()))
}

fn other_fields(value: &[u8]) {
    let tag = etag::EntityTag::strong(b"a");
    range::if_range(value, tag, Some(0));
    if let Some(tag) = etag::EntityTag::parse(value) {
        let mut text = Vec::new();
        tag.write(&mut text);
        assert_eq!(etag::EntityTag::parse(&text), Some(tag));
    }
    if let Some(seconds) = date::parse(value) {
        let year_10000 = 253_402_300_800;
        assert!(seconds >= year_10000 || date::parse(&date::format(seconds)) == Some(seconds));
    }
}
