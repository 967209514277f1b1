//! The responses of the bare loops. They are as long as those of Onrush and have constant dates.

use std::{fs::Metadata, os::unix::fs::MetadataExt};

/// The response of `hello` with a constant date, which the load generators do not read.
pub const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: onrush\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 13\r\n\
    \r\n\
    Hello, World!";

/// The last response of `hello` on a connection.
pub const LAST_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: onrush\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 13\r\n\
    Connection: close\r\n\
    \r\n\
    Hello, World!";

/// The head of `onrush` for a file of unknown type, with constant dates.
#[must_use]
pub fn file_head(metadata: &Metadata) -> Vec<u8> {
    let (inode, len) = (metadata.ino(), metadata.len());
    let modified = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    format!(
        "HTTP/1.1 200 OK\r\n\
         Server: onrush\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: application/octet-stream\r\n\
         Content-Length: {len}\r\n\
         Accept-Ranges: bytes\r\n\
         Cache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\n\
         ETag: \"{inode:x}-{len:x}-{modified:x}\"\r\n\
         Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         \r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_response_has_one_more_field() {
        assert_eq!(
            RESPONSE.len() + b"Connection: close\r\n".len(),
            LAST_RESPONSE.len()
        );
    }
}
