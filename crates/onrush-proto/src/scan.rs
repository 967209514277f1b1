//! Slow, exact scan of a request head that finds the first violation.
//!
//! The fast path in [`crate::head`] detects only *that* a head is malformed or unfinished. This
//! scan determines *why*. It reads from left to right and stops at the first violation, so the
//! reason for a refusal does not depend on how the bytes were split. It checks syntax and sizes
//! (RFC 9112 §2 to §5); [`crate::head`] checks what the fields mean together.

use crate::{limits::Limits, reject::Reject, token};

/// Empty lines that are accepted before a request line (RFC 9112 §2.2).
const EMPTY_LINES_MAX: usize = 2;

/// Longest method. A longer one is refused as not implemented: 501.
pub(crate) const METHOD_BYTES_MAX: usize = 32;

/// Number of bytes after which a method that has not ended is refused: 400. Its sender is not an
/// HTTP client and must not occupy memory up to the limit on heads.
const METHOD_UNENDED_BYTES_MAX: usize = 64;

/// The reason why the scan stopped before the head's end.
enum Stop {
    Partial,
    Reject(Reject),
}

type Scan<T> = Result<T, Stop>;

/// Scans the head at the start of `bytes`.
///
/// `Ok(Some(n))`: the head is well-formed and has `n` bytes. `Ok(None)`: no violation so far, more
/// bytes are needed.
#[cold]
pub(crate) fn scan(bytes: &[u8], limits: &Limits) -> Result<Option<usize>, Reject> {
    let mut cursor = Cursor {
        bytes,
        at: 0,
        in_target: true,
        limits,
    };
    match cursor.head() {
        Ok(()) => Ok(Some(cursor.at)),
        Err(Stop::Partial) => Ok(None),
        Err(Stop::Reject(reject)) => Err(reject),
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    /// The next byte to read.
    at: usize,
    /// Method and target have not ended: a head that is too long gets 414, not 431.
    in_target: bool,
    limits: &'a Limits,
}

fn refuse<T>(status: u16, reason: &'static str) -> Scan<T> {
    Err(Stop::Reject(Reject { status, reason }))
}

impl Cursor<'_> {
    fn head(&mut self) -> Scan<()> {
        self.empty_lines()?;
        self.method()?;
        self.target()?;
        self.in_target = false;
        self.version()?;
        let mut count = 0;
        while self.peek()? != b'\r' {
            if count >= self.limits.field_count_max.min(Limits::FIELDS_CEILING) {
                return refuse(431, "too many fields");
            }
            count += 1;
            self.name(count == 1)?;
            self.value()?;
        }
        self.line_end("bare CR")
    }

    /// Returns the next byte without consuming it. Beyond the limit the head is too large, whether
    /// or not the byte has been received.
    fn peek(&self) -> Scan<u8> {
        if self.at >= self.limits.head_bytes_max {
            return match self.in_target {
                true => refuse(414, "request target too long"),
                false => refuse(431, "request head too large"),
            };
        }
        self.bytes.get(self.at).copied().ok_or(Stop::Partial)
    }

    fn take(&mut self) -> Scan<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    fn expect(&mut self, byte: u8, reason: &'static str) -> Scan<()> {
        if self.take()? == byte {
            Ok(())
        } else {
            refuse(400, reason)
        }
    }

    fn line_end(&mut self, reason: &'static str) -> Scan<()> {
        self.expect(b'\r', reason)?;
        self.expect(b'\n', "bare CR")
    }

    fn empty_lines(&mut self) -> Scan<()> {
        let mut count = 0;
        while self.peek()? == b'\r' {
            count += 1;
            if count > EMPTY_LINES_MAX {
                return refuse(400, "empty lines before the request");
            }
            self.line_end("bare CR")?;
        }
        Ok(())
    }

    fn method(&mut self) -> Scan<()> {
        let start = self.at;
        loop {
            match self.take()? {
                b' ' if self.at - start > METHOD_BYTES_MAX + 1 => {
                    return refuse(501, "unknown method");
                }
                b' ' if self.at - start > 1 => return Ok(()),
                byte if !token::is_tchar(byte) => return refuse(400, "malformed method"),
                _ if self.at - start > METHOD_UNENDED_BYTES_MAX => {
                    return refuse(400, "method too long");
                }
                _ => {}
            }
        }
    }

    fn target(&mut self) -> Scan<()> {
        let start = self.at;
        loop {
            match self.take()? {
                b' ' if self.at - start > 1 => return Ok(()),
                b'#' => return refuse(400, "fragment in the request target"),
                b'!'..=b'~' => {}
                _ => return refuse(400, "malformed request target"),
            }
            if self.at - start > self.limits.target_bytes_max {
                return refuse(414, "request target too long");
            }
        }
    }

    fn version(&mut self) -> Scan<()> {
        for &byte in b"HTTP/" {
            self.expect(byte, "malformed version")?;
        }
        let major = self.digit()?;
        self.expect(b'.', "malformed version")?;
        let minor = self.digit()?;
        self.line_end("malformed request line")?;
        // Checked at the end of the line: `HTTP/2.01` is malformed, not another version.
        match (major, minor) {
            (b'1', b'0' | b'1') => Ok(()),
            _ => refuse(505, "HTTP version not supported"),
        }
    }

    fn digit(&mut self) -> Scan<u8> {
        match self.take()? {
            digit @ b'0'..=b'9' => Ok(digit),
            _ => refuse(400, "malformed version"),
        }
    }

    fn name(&mut self, first: bool) -> Scan<()> {
        let start = self.at;
        loop {
            match self.take()? {
                b':' if self.at - start > 1 => return Ok(()),
                b' ' | b'\t' if self.at - start > 1 => {
                    return refuse(400, "space before a colon");
                }
                b' ' | b'\t' if first => return refuse(400, "space before the first field"),
                b' ' | b'\t' => return refuse(400, "folded field line"),
                byte if !token::is_tchar(byte) => return refuse(400, "malformed field name"),
                _ => {}
            }
        }
    }

    fn value(&mut self) -> Scan<()> {
        loop {
            match self.take()? {
                b'\r' => return self.expect(b'\n', "bare CR"),
                b'\n' => return refuse(400, "bare LF"),
                byte if !token::is_value_byte(byte) => {
                    return refuse(400, "control character in a field value");
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{Head, Parsed};

    /// Parses nearly valid heads from a fixed seed: parts of valid ones with bytes changed, removed
    /// and inserted. The fast path and this scan must accept the same heads.
    #[test]
    fn both_readings_agree() {
        let base = b"\r\nGET /abc?d HTTP/1.1\r\nHost: a.b:80\r\nAccept:\t*/*  \r\nEmpty:\r\n\
            Connection: keep-alive\r\nContent-Length: 12\r\n\r\nGET / HTTP/1.0\r\n\r\n";
        let odd = b"\r\n\t :#/?\0\x7f\x80\xc3H1.G\"";
        let limits = Limits {
            head_bytes_max: 120,
            ..Limits::default()
        };
        let mut seed: u64 = 1;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let mut head = Head::default();
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..200_000 {
            let mut bytes = base.to_vec();
            for _ in 0..random(3) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = odd[random(odd.len())],
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, odd[random(odd.len())]),
                }
            }
            bytes.truncate(random(bytes.len() + 20) + 1);
            match (head.parse(&bytes, &limits), scan(&bytes, &limits)) {
                (Ok(Parsed::Complete(n)), Ok(Some(m))) if n == m => accepted += 1,
                (Ok(Parsed::Partial), Ok(None)) => {}
                (Err(fast), Err(exact)) if fast == exact => refused += 1,
                // The syntax is valid; the fields together are not.
                (Err(_), Ok(Some(_))) => refused += 1,
                (fast, exact) => panic!("{fast:?}, {exact:?}: {}", bytes.escape_ascii()),
            }
        }
        assert!(accepted > 1_000 && refused > 1_000, "{accepted} {refused}");
    }
}
