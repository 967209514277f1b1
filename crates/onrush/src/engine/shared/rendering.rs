//! What the responses of a worker are rendered with.

use onrush_proto::response::HeadCache;
use onrush_rt::worker::WorkerContext;
use std::cell::{Cell, RefCell, RefMut};

/// The buffer is freed after a call that made it larger than this.
const OUT_KEPT_BYTES: usize = 256 * 1024;

/// Buffers for frames are kept up to this number of bytes.
const FRAMES_KEPT_BYTES: usize = 2 * 1024 * 1024;

/// Empty buffers.
#[derive(Default)]
struct FrameBuffers {
    spare: Vec<Vec<u8>>,
    /// Their capacity.
    bytes: usize,
}

/// The buffers, the date and the heads that the responses of one worker share.
pub(in crate::engine) struct Rendering {
    context: WorkerContext,
    /// Responses rendered in the present call and not sent yet. Empty while a call uses the buffer.
    out: Cell<Vec<u8>>,
    /// For the frames of connections, each of which has some until they are sent.
    frames: RefCell<FrameBuffers>,
    /// The second for which `date` was rendered.
    date_s: Cell<u64>,
    date: Cell<[u8; 29]>,
    heads: RefCell<HeadCache>,
}

impl Rendering {
    pub(in crate::engine) fn new(context: &WorkerContext) -> Rendering {
        Rendering {
            context: context.clone(),
            out: Cell::default(),
            frames: RefCell::default(),
            date_s: Cell::new(u64::MAX),
            date: Cell::new([0; 29]),
            heads: RefCell::default(),
        }
    }

    /// The value of the `Date` field for the present second (RFC 9110 §6.6.1).
    #[inline]
    pub(in crate::engine) fn date(&self) -> [u8; 29] {
        let now = self.context.unix_seconds();
        if self.date_s.replace(now) != now {
            self.date.set(onrush_proto::date::format(now));
        }
        self.date.get()
    }

    /// The heads that were rendered before.
    #[inline]
    pub(in crate::engine) fn heads(&self) -> RefMut<'_, HeadCache> {
        self.heads.borrow_mut()
    }

    /// An empty buffer for responses.
    #[inline]
    pub(in crate::engine) fn take_buffer(&self) -> Vec<u8> {
        let mut out = self.out.take();
        out.clear();
        out
    }

    /// Takes the buffer back.
    #[inline]
    pub(in crate::engine) fn keep_buffer(&self, out: Vec<u8>) {
        if out.capacity() <= OUT_KEPT_BYTES {
            self.out.set(out);
        }
    }

    /// Gives `buffer` memory for the frames of a connection, if it has none.
    #[inline]
    pub(in crate::engine) fn provide_frames(&self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0 {
            let mut frames = self.frames.borrow_mut();
            *buffer = frames.spare.pop().unwrap_or_default();
            frames.bytes -= buffer.capacity();
        }
    }

    /// Takes a buffer for frames back.
    pub(in crate::engine) fn keep_frames(&self, mut buffer: Vec<u8>) {
        let mut frames = self.frames.borrow_mut();
        let bytes = frames.bytes + buffer.capacity();
        if (1..=OUT_KEPT_BYTES).contains(&buffer.capacity()) && bytes <= FRAMES_KEPT_BYTES {
            buffer.clear();
            frames.bytes = bytes;
            frames.spare.push(buffer);
        }
    }
}
