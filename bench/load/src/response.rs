//! Incremental parser of responses, without pipelining.

/// Most fields of a response.
const FIELDS_MAX: usize = 64;

/// Most bytes of a head; a longer head is invalid.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Parses responses with `Content-Length`. Each response must be the only one in flight.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The received bytes of an incomplete head.
    begun: Vec<u8>,
    /// The response whose head is complete, and the number of missing body bytes.
    body: Option<(Response, u64)>,
}

/// A complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Bytes of its content.
    pub(crate) len: u64,
}

/// The result of parsing received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The response is not complete.
    More,
    Whole(Response),
    /// The bytes are not a response with a length, or they are longer than the response.
    Broken,
}

impl Reader {
    /// Parses received bytes. After any result except [`Read::More`], the next response may begin.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Read {
        let read = self.advance(bytes);
        if read != Read::More {
            self.begun.clear();
            self.body = None;
        }
        read
    }

    fn advance(&mut self, bytes: &[u8]) -> Read {
        if let Some((response, missing)) = self.body {
            return self.take_body(response, missing, bytes.len() as u64);
        }
        // A head nearly always arrives in one piece.
        if self.begun.is_empty() {
            return self.take_head(bytes);
        }
        let mut whole = std::mem::take(&mut self.begun);
        whole.extend_from_slice(bytes);
        self.take_head(&whole)
    }

    fn take_head(&mut self, bytes: &[u8]) -> Read {
        match head(bytes) {
            Some((len, response)) => {
                self.take_body(response, response.len, (bytes.len() - len) as u64)
            }
            None if is_begun(bytes) => {
                self.begun.extend_from_slice(bytes);
                Read::More
            }
            None => Read::Broken,
        }
    }

    fn take_body(&mut self, response: Response, missing: u64, here: u64) -> Read {
        match missing.checked_sub(here) {
            Some(0) => Read::Whole(response),
            Some(missing) => {
                self.body = Some((response, missing));
                Read::More
            }
            None => Read::Broken,
        }
    }
}

/// Parses the head at the start of `bytes`. Returns its length and the response.
fn head(bytes: &[u8]) -> Option<(usize, Response)> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(len) = response.parse(bytes).ok()? else {
        return None;
    };
    let status = response.code?;
    let mut lengths = response
        .headers
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("content-length"));
    let len_text = std::str::from_utf8(lengths.next()?.value).ok()?;
    let reply = Response {
        status,
        len: len_text.parse().ok()?,
    };
    Some((len, reply))
}

/// Whether `bytes` may be the beginning of a head.
fn is_begun(bytes: &[u8]) -> bool {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let parsed = httparse::Response::new(&mut fields).parse(bytes);
    matches!(parsed, Ok(httparse::Status::Partial)) && bytes.len() <= HEAD_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 13\r\n\r\nHello, World!";
    const EMPTY: &[u8] = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";

    fn whole(status: u16, len: u64) -> Read {
        Read::Whole(Response { status, len })
    }

    #[test]
    fn split_at_every_byte() {
        for (text, expected) in [(HELLO, whole(200, 13)), (EMPTY, whole(503, 0))] {
            let mut reader = Reader::default();
            for split in 1..text.len() {
                assert_eq!(reader.read(&text[..split]), Read::More, "split at {split}");
                assert_eq!(reader.read(&text[split..]), expected, "split at {split}");
            }
            assert_eq!(reader.read(text), expected);
        }
    }

    #[test]
    fn byte_by_byte() {
        let mut reader = Reader::default();
        let (last, before) = HELLO.split_last().expect("bytes");
        assert!(
            before
                .iter()
                .all(|byte| reader.read(&[*byte]) == Read::More)
        );
        assert_eq!(reader.read(&[*last]), whole(200, 13));
    }

    #[test]
    fn more_than_the_response_is_broken() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(&[HELLO, b"x"].concat()), Read::Broken);
        assert_eq!(reader.read(HELLO), whole(200, 13));
    }

    #[test]
    fn no_response_or_no_length_is_broken() {
        for text in ["garbage\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert_eq!(
                Reader::default().read(text.as_bytes()),
                Read::Broken,
                "{text}"
            );
        }
    }
}
