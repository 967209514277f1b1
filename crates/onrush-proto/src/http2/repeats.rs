//! Heads that are the same as the one before: a client often repeats a request, and the response
//! to it. The same block has the same meaning as long as the table has not changed, so neither is
//! decoded or encoded again.

use crate::head::Head;
use crate::http2::response_head::ResponseHead;
use crate::limits::Limits;
use crate::response::ContentLength;

/// Longer blocks are not kept.
const BLOCK_BYTES_MAX: usize = 512;

/// The last block of a request, and what it means.
#[derive(Debug, Default)]
pub(super) struct LastRequest {
    /// Empty if there is none.
    block: Vec<u8>,
    /// The version of the decoder's table, which the block has not changed.
    version: u64,
    has_ended: bool,
    limits: [usize; 3],
    head: Head,
}

fn bounds(limits: &Limits) -> [usize; 3] {
    [
        limits.head_bytes_max,
        limits.field_count_max,
        limits.target_bytes_max,
    ]
}

impl LastRequest {
    /// Whether this is the same block with the same meaning. Then fills `head`.
    #[inline]
    pub(super) fn fill(
        &self,
        block: &[u8],
        version: u64,
        has_ended: bool,
        limits: &Limits,
        head: &mut Head,
    ) -> bool {
        let is_same = !self.block.is_empty()
            && self.block == block
            && self.version == version
            && self.has_ended == has_ended
            && self.limits == bounds(limits);
        if is_same {
            head.copy_from(&self.head);
        }
        is_same
    }

    /// Keeps a block that has not changed the table.
    pub(super) fn keep(
        &mut self,
        block: &[u8],
        version: u64,
        has_ended: bool,
        limits: &Limits,
        head: &Head,
    ) {
        self.block.clear();
        if block.len() <= BLOCK_BYTES_MAX {
            self.block.extend_from_slice(block);
            (self.version, self.has_ended, self.limits) = (version, has_ended, bounds(limits));
            self.head.copy_from(head);
        }
    }

    /// Forgets the block: the text of its head is gone.
    pub(super) fn forget(&mut self) {
        self.block.clear();
    }
}

/// The last block of a response, and what it was made of.
#[derive(Debug, Default)]
pub(super) struct LastResponse {
    /// Empty if there is none.
    block: Vec<u8>,
    /// The version of the encoder's table, which the block has not changed.
    version: u64,
    status: u16,
    length: Option<u64>,
    has_type: bool,
    /// The value of `content-type`, and the fields behind it.
    content_type: Vec<u8>,
    fields: Vec<u8>,
    date: [u8; 29],
}

fn known(length: ContentLength) -> Option<u64> {
    match length {
        ContentLength::Known(bytes) => Some(bytes),
        ContentLength::Unknown => None,
    }
}

impl LastResponse {
    /// The block, if it is that of the same head.
    #[inline]
    pub(super) fn get(&self, head: &ResponseHead<'_>, version: u64) -> Option<&[u8]> {
        let content_type = head.content_type.unwrap_or_default().as_bytes();
        let is_same = !self.block.is_empty()
            && self.version == version
            && self.status == head.status
            && self.length == known(head.length)
            && self.has_type == head.content_type.is_some()
            && self.content_type == content_type
            && self.fields == head.fields
            && self.date == *head.date;
        is_same.then_some(&self.block)
    }

    /// Keeps a block that has not changed the table.
    pub(super) fn keep(&mut self, head: &ResponseHead<'_>, version: u64, block: &[u8]) {
        self.block.clear();
        if block.len() > BLOCK_BYTES_MAX || head.fields.len() > BLOCK_BYTES_MAX {
            return;
        }
        let content_type = head.content_type.unwrap_or_default().as_bytes();
        self.block.extend_from_slice(block);
        (self.version, self.status) = (version, head.status);
        (self.length, self.has_type) = (known(head.length), head.content_type.is_some());
        self.content_type.clear();
        self.content_type.extend_from_slice(content_type);
        self.fields.clear();
        self.fields.extend_from_slice(head.fields);
        self.date = *head.date;
    }
}
