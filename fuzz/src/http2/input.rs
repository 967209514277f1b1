//! The bytes of an input as decisions.

/// What is left of an input. Behind its end, all is 0.
pub(super) struct Input<'b> {
    rest: &'b [u8],
}

impl<'b> Input<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Input<'b> {
        Input { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&byte, rest)) => {
                self.rest = rest;
                byte
            }
            None => 0,
        }
    }

    /// Up to `count` bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes.to_vec()
    }

    /// Up to `most`: small numbers, and others of all sizes. Takes one byte or two.
    pub(super) fn number(&mut self, most: usize) -> usize {
        let first = usize::from(self.byte());
        let number = match first {
            0..=127 => first,
            254 => most.saturating_sub(1),
            255 => most,
            _ => usize::from(self.byte()) << (first & 31),
        };
        number.min(most)
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        match choices.len() {
            0 => None,
            count => Some(choices[usize::from(self.byte()) % count]),
        }
    }
}
