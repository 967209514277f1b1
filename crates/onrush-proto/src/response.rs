//! Response heads (RFC 9112 §4, RFC 9110 §15): field lines that cannot split a response, and their rendering.

/// Rendered field lines: `Name: value CRLF` each. Refuses names that are not tokens and values with
/// CR, LF, NUL or other control characters (response splitting), and the fields that framing owns
/// (Content-Length, Transfer-Encoding, Connection, Date, Keep-Alive, Trailer? …decide & document).
#[derive(Clone, Debug, Default)]
pub struct FieldLines { lines: Vec<u8> }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldError { /// not a token
    Name, /// control characters
    Value, /// owned by the framing
    Reserved }
impl FieldLines {
    pub const fn new() -> Self { FieldLines { lines: Vec::new() } }
    pub fn append(&mut self, name: &str, value: &[u8]) -> Result<(), FieldError> { todo!() }
    /// Removes all lines of that name, then appends.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), FieldError> { todo!() }
    pub fn remove(&mut self, name: &str) { todo!() }
    pub fn get(&self, name: &str) -> Option<&[u8]> { todo!() }
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> { std::iter::empty() }
    pub fn as_bytes(&self) -> &[u8] { &self.lines }
    pub fn is_empty(&self) -> bool { self.lines.is_empty() }
}
/// The standard reason phrase, or "" for unknown codes.
pub fn reason_phrase(status: u16) -> &'static str { todo!() }

/// How long the content of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLength { /// exactly this many bytes
    Known(u64), /// not known ahead: chunked in 1.1, until close in 1.0
    Unknown }
