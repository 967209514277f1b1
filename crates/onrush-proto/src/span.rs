//! Offsets into a head.

/// A range of the bytes that a head was parsed from. Heads are far smaller than 4 GiB.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl Span {
    #[inline]
    pub(crate) fn new(start: usize, len: usize) -> Span {
        Span {
            start: start as u32,
            len: len as u32,
        }
    }

    /// The position of `part` in the bytes that begin at address `base`.
    #[inline]
    pub(crate) fn locate(part: &[u8], base: usize) -> Span {
        Span::new((part.as_ptr() as usize).wrapping_sub(base), part.len())
    }

    #[inline]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.len as usize]
    }
}
