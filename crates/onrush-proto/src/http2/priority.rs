//! Priorities of responses (RFC 9218). Those of RFC 7540 are ignored.

/// How urgent a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// The client can use parts of the response, so that it may share the connection with others of
    /// the same urgency. Otherwise one is sent after the other.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority {
            urgency: 3,
            is_incremental: false,
        }
    }
}

impl Priority {
    /// That of a request which says nothing. Such a client does not know of priorities, and expects
    /// that its responses share the connection.
    pub const SHARED: Priority = Priority {
        urgency: 3,
        is_incremental: true,
    };

    /// Parses the value of a field `priority` or of a PRIORITY_UPDATE: a dictionary of RFC 9651
    /// with the members `u` and `i`. What is unknown or malformed has no effect (RFC 9218 §4).
    pub fn parse(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|&byte| byte == b',') {
            let member = member.trim_ascii();
            let end = member
                .iter()
                .position(|&byte| byte == b';')
                .unwrap_or(member.len());
            match member[..end].trim_ascii_end() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_members_have_an_effect() {
        let priority = |urgency, is_incremental| Priority {
            urgency,
            is_incremental,
        };
        let cases = [
            ("", priority(3, false)),
            ("u=0", priority(0, false)),
            ("u=5, i", priority(5, true)),
            ("i=?0,u=1", priority(1, false)),
            ("u=7;x=1 , i;y", priority(7, true)),
            ("u=8, i=1, u=-1, u=1.0, urgency=2", priority(3, false)),
            ("u=1, u=2", priority(2, false)),
        ];
        for (value, expected) in cases {
            assert_eq!(Priority::parse(value.as_bytes()), expected, "{value}");
        }
    }
}
