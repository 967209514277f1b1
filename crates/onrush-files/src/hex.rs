//! Bytes as text.

use std::fmt::Write;

/// Two hexadecimal digits in lower case for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // Writing to a String does not fail.
    }
    text
}
