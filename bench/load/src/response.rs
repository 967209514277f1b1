//! One answer at a time, as its bytes come. Must not know what was asked, nor sockets.

/// Fields an answer may have.
const FIELDS_MAX: usize = 64;

/// Bytes of a head; one that is longer is broken.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Reads answers that carry `Content-Length`, each the only one that is awaited.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// What came of a head that is not whole.
    begun: Vec<u8>,
    /// The answer whose head is whole, and how much of its body is missing.
    body: Option<(Response, u64)>,
}

/// An answer that was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Bytes of its content.
    pub(crate) len: u64,
}

/// What some bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// There is more to come.
    More,
    Whole(Response),
    /// They are no answer with a length, or more than the answer.
    Broken,
}

impl Reader {
    /// Takes what was received. After anything but [`Read::More`] the next answer may begin.
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
        // Nearly always a whole head comes at once.
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

/// The head that `bytes` begin with: its length, and the answer it announces.
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

/// Whether `bytes` may become a head.
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
    fn more_than_the_answer_is_broken() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(&[HELLO, b"x"].concat()), Read::Broken);
        assert_eq!(reader.read(HELLO), whole(200, 13));
    }

    #[test]
    fn no_answer_or_no_length_is_broken() {
        for text in ["garbage\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert_eq!(
                Reader::default().read(text.as_bytes()),
                Read::Broken,
                "{text}"
            );
        }
    }
}
