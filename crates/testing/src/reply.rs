//! Parses HTTP/1.1 responses and checks their framing (RFC 9112, section 6).

/// A response with its decoded body.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    fields: Vec<(String, String)>,
    /// The content, without transfer coding.
    pub body: Vec<u8>,
}

impl Reply {
    /// Parses one response. `head_only` says that it responds to HEAD.
    ///
    /// # Panics
    /// If the bytes are not one complete response with valid framing.
    pub fn parse(bytes: &[u8], head_only: bool) -> Reply {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]);
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no response: {shown:?}"));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap()[9..12].parse().unwrap();
        let fields = lines.map(|line| line.split_once(": ").unwrap());
        let fields = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        let mut reply = Reply {
            status,
            fields: fields.collect(),
            body: bytes[end + 4..].to_vec(),
        };
        assert_eq!(reply.all("date").count(), 1, "{shown:?}");
        if head_only || matches!(status, 204 | 304) {
            assert!(
                reply.body.is_empty(),
                "content where none is allowed: {shown:?}"
            );
        } else if reply.field("transfer-encoding") == Some("chunked") {
            reply.body = dechunk(&reply.body);
        } else {
            let length: usize = reply.field("content-length").unwrap().parse().unwrap();
            assert_eq!(reply.body.len(), length, "{shown:?}");
        }
        reply
    }

    /// The value of the first field line with this name, in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of all field lines with this name, in lower case.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let fields = self.fields.iter().filter(move |(have, _)| have == name);
        fields.map(|(_, value)| value.as_str())
    }

    /// The content as UTF-8.
    ///
    /// # Panics
    /// If it is something else.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The value of `ETag`.
    ///
    /// # Panics
    /// If there is none.
    pub fn etag(&self) -> &str {
        self.field("etag").expect("a response with an entity tag")
    }
}

fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        rest = &rest[end + 2..];
        if size == 0 {
            assert_eq!(rest, b"\r\n");
            return all;
        }
        all.extend_from_slice(&rest[..size]);
        assert_eq!(&rest[size..size + 2], b"\r\n");
        rest = &rest[size + 2..];
    }
}
