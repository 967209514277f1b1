//! The field `traceparent` (W3C Trace Context, §3.2): the trace that a request belongs to.

/// The ids of a request in a trace, as sent: hexadecimal digits in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent<'a> {
    /// The trace: 32 digits, not all zero.
    pub trace_id: &'a str,
    /// The request, as its sender calls it: 16 digits, not all zero.
    pub parent_id: &'a str,
}

/// Parses the value of `traceparent`. `None` if it is malformed: the field is then to be ignored.
/// Of a later version than 00, the part that this version defines is used.
///
/// ```
/// use onrush_proto::traceparent::parse;
/// let value = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent = parse(value).expect("the example of the specification");
/// assert_eq!(parent.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(parent.parent_id, "00f067aa0ba902b7");
/// ```
pub fn parse(value: &[u8]) -> Option<TraceParent<'_>> {
    const BYTES: usize = 55;
    let text = std::str::from_utf8(value).ok()?;
    let (head, rest) = text.split_at_checked(BYTES)?;
    let is_hex = |part: &str| {
        part.bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |part: &str| is_hex(part) && part.bytes().any(|byte| byte != b'0');
    let mut parts = head.split('-');
    let (version, trace_id, parent_id, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let has_form = parts.next().is_none()
        && (version.len(), trace_id.len(), parent_id.len(), flags.len()) == (2, 32, 16, 2)
        && is_hex(version)
        && version != "ff"
        && is_id(trace_id)
        && is_id(parent_id)
        && is_hex(flags);
    let ends = match version {
        "00" => rest.is_empty(),
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    (has_form && ends).then_some(TraceParent {
        trace_id,
        parent_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_form_of_the_specification_is_valid() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for (value, expected) in [
            (format!("00-{trace}-{parent}-01"), true),
            (format!("00-{trace}-{parent}-00"), true),
            (format!("cc-{trace}-{parent}-01"), true),
            (format!("cc-{trace}-{parent}-01-what"), true),
            (format!("cc-{trace}-{parent}-01.what"), false),
            (format!("00-{trace}-{parent}-01-what"), false),
            (format!("ff-{trace}-{parent}-01"), false),
            (format!("00-{trace}-{parent}-0"), false),
            (format!("00-{trace}-{parent}"), false),
            (format!("00-{}-{parent}-01", "0".repeat(32)), false),
            (format!("00-{trace}-{}-01", "0".repeat(16)), false),
            (format!("00-{}-{parent}-01", trace.to_uppercase()), false),
            (format!("0-{trace}0-{parent}-01"), false),
            (format!(" 00-{trace}-{parent}-01"), false),
            (format!("00-{trace}-{parent}-\u{e4}"), false),
            (String::new(), false),
        ] {
            let parsed = parse(value.as_bytes());
            let ids = expected.then_some((trace, parent));
            assert_eq!(parsed.map(|it| (it.trace_id, it.parent_id)), ids, "{value}");
        }
        assert_eq!(parse(&[0xff; 55]), None);
    }
}
