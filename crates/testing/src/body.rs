//! Content of objects.

/// `len` bytes that differ at each position: a part at another place is noticed.
///
/// This crate is optimised in tests: the tests make gigabytes of content.
pub fn body(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}
