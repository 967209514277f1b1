//! The values of a response head.

use crate::response::ContentLength;

/// The head of a response, as
/// [`Connection::send_head`](crate::http2::connection::Connection::send_head) writes it.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// 200 to 999.
    pub status: u16,
    /// The value of `content-type`.
    pub content_type: Option<&'a str>,
    /// Field lines with CRLF, as [`FieldLines`](crate::response::FieldLines) has them.
    pub fields: &'a [u8],
    /// The length of the content.
    pub length: ContentLength,
    /// The value of `date`.
    pub date: &'a [u8; 29],
}
