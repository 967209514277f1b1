//! Content codings (RFC 9110 §8.4.1), and the choice among them by `Accept-Encoding` (§12.5.3).

use crate::request::Request;
use onrush_proto::token;

/// A content coding. The order is that in which the server prefers them: the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Zstandard.
    Zstd,
    /// Brotli, of which there is only content that was compressed before.
    Brotli,
    /// Gzip.
    Gzip,
}

impl Coding {
    /// All of them, in order.
    pub const ALL: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

    /// The name in fields (RFC 8878 §7.2, RFC 7932 §13, RFC 9110 §8.4.1.3).
    pub fn name(self) -> &'static str {
        match self {
            Coding::Zstd => "zstd",
            Coding::Brotli => "br",
            Coding::Gzip => "gzip",
        }
    }

    /// Whether there is an [`Encoder`](super::Encoder) for it. Brotli is too slow to compress at
    /// the pace of a client.
    pub fn has_encoder(self) -> bool {
        self != Coding::Brotli
    }

    fn of_name(name: &[u8]) -> Option<Coding> {
        let is_gzip = name.eq_ignore_ascii_case(b"x-gzip"); // RFC 9110 §8.4.1.3
        let named = |coding: &Coding| name.eq_ignore_ascii_case(coding.name().as_bytes());
        match is_gzip {
            true => Some(Coding::Gzip),
            false => Coding::ALL.into_iter().find(named),
        }
    }
}

/// The codings that a client accepts. Weights are thousandths; 0 is not accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    weights: [u16; Coding::ALL.len()],
    /// The weight of content without a coding, if the client states one.
    identity: Option<u16>,
}

impl Accepted {
    /// The codings that a request accepts. None without `Accept-Encoding`.
    pub fn of(request: &Request) -> Accepted {
        if request.header("accept-encoding").is_none() {
            return Accepted::default(); // Looking up one field is cheaper than a pass over all.
        }
        Accepted::of_values(request.header_values("accept-encoding"))
    }

    fn of_values<'v>(values: impl Iterator<Item = &'v [u8]>) -> Accepted {
        let mut named = [None; Coding::ALL.len()];
        let (mut identity, mut others) = (None, 0);
        for member in values.flat_map(token::list) {
            let (name, weight) = token::weighted(member);
            if let Some(coding) = Coding::of_name(name) {
                named[coding as usize] = named[coding as usize].max(Some(weight));
            } else if name.eq_ignore_ascii_case(b"identity") {
                identity = Some(weight);
            } else if name == b"*" {
                others = weight;
            }
        }
        Accepted {
            weights: named.map(|weight| weight.unwrap_or(others)),
            identity,
        }
    }

    /// Whether the client accepts no coding.
    pub fn is_none(&self) -> bool {
        self.weights == [0; Coding::ALL.len()]
    }

    /// Whether the client accepts this coding.
    pub fn contains(&self, coding: Coding) -> bool {
        self.weights[coding as usize] > 0
    }

    /// The coding with the highest weight among those that are available. `None`: there is none, or
    /// the client prefers the content without a coding.
    pub fn best(&self, is_available: impl Fn(Coding) -> bool) -> Option<Coding> {
        let weight = |coding: Coding| self.weights[coding as usize];
        let good = |coding: &Coding| self.contains(*coding) && is_available(*coding);
        // Of equal weights, `max_by_key` returns the last one.
        let candidates = Coding::ALL.into_iter().rev().filter(good);
        let best = candidates.max_by_key(|coding| weight(*coding))?;
        (self.identity.unwrap_or(0) <= weight(best)).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_decide_then_the_order_of_the_server() {
        let (zstd, br, gzip) = (Some(Coding::Zstd), Some(Coding::Brotli), Some(Coding::Gzip));
        let all = &Coding::ALL[..];
        let table: [(&str, &[Coding], Option<Coding>); 22] = [
            ("", all, None),
            ("gzip, deflate, br, zstd", all, zstd),
            ("gzip, deflate, br", all, br),
            ("gzip, deflate", all, gzip),
            ("gzip, br, zstd", &[Coding::Gzip], gzip),
            ("gzip, br", &[Coding::Zstd], None),
            ("GZIP", all, gzip),
            ("x-gzip", all, gzip),
            ("gzip;q=1.0, br;q=0.9, zstd;q=0.1", all, gzip),
            ("gzip; q=0.2 , zstd;q=0.1", all, gzip),
            ("gzip;q=0", all, None),
            ("*", all, zstd),
            ("*;q=0", all, None),
            ("*;q=0, gzip", all, gzip),
            ("*;q=0.5, zstd;q=0, br;q=0.4", all, gzip),
            ("identity", all, None),
            ("identity, gzip;q=0.5", all, None),
            ("identity;q=0.5, gzip", all, gzip),
            ("identity;q=0, gzip;q=0.001", all, gzip),
            ("gzip, identity", all, gzip),
            ("gzip;q=x", all, gzip),
            ("compress, deflate", all, None),
        ];
        for (value, available, expected) in table {
            let accepted = Accepted::of_values([value.as_bytes()].into_iter());
            let best = accepted.best(|coding| available.contains(&coding));
            assert_eq!(best, expected, "{value}");
        }
        let lines = [&b"gzip;q=0.5"[..], b"br"];
        let accepted = Accepted::of_values(lines.into_iter());
        assert_eq!(accepted.best(|_| true), br);
        assert_eq!(accepted.best(|coding| coding == Coding::Gzip), gzip);
        assert!(Accepted::default().is_none() && !accepted.is_none());
    }
}
