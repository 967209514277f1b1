//! Reads an object of an edge: from blocks in the cache, from blocks that are being transferred,
//! and from the other store what the cache does not take.

use super::heads::Head;
use super::readers::Member;
use super::run::{FillEnd, FillState, Joined, Reading, open_version};
use super::{ATTEMPTS, EdgeInner};
use crate::error::{Result, StoreError};
use crate::local::LocalFile;
use crate::object::{ByteStream, FilePart, LocalFuture, ReadAt};
use crate::record::Record;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::File;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

/// The bytes of a piece.
const PIECE_BYTES: u64 = 128 * 1024;
/// The most blocks that one response has open at a time, if they are sent from their files.
const PARTS_MAX: u64 = 16;

pub(super) struct EdgeReader {
    pub(super) inner: Arc<EdgeInner>,
    pub(super) head: Arc<Head>,
    /// The transfer of the block with which the caller begins. It goes on until it is read.
    pub(super) first: Mutex<Option<(u64, Reading)>>,
    /// The run that transfers the first blocks.
    pub(super) member: Option<Arc<Member>>,
}

/// Where the bytes of a block are.
pub(super) enum BlockSource {
    File(Arc<File>),
    Filling(Reading),
    /// The rest of the range, from the other store.
    Store(ByteStream),
}

impl EdgeInner {
    /// Opens a block. Begins to transfer it if it is not in the cache; `end`: where the reader
    /// ends, in bytes.
    pub(super) async fn open_block(
        self: &Arc<Self>,
        head: &Arc<Head>,
        number: u64,
        end: u64,
    ) -> Result<BlockSource> {
        for _ in 0..ATTEMPTS {
            if let Some(file) = self.open_stored(head, number).await? {
                return Ok(BlockSource::File(file));
            }
            if !self.cache.accepts() {
                break;
            }
            match self.block(head, number, end) {
                Joined::Filling(reading) => return Ok(BlockSource::Filling(reading)),
                Joined::Stored => {} // Since a moment ago.
                Joined::Follows(before) => before.ended().await,
            }
        }
        self.uncached(head, number * head.block_bytes..end).await
    }

    /// A range from the other store, past the cache.
    async fn uncached(&self, head: &Head, range: Range<u64>) -> Result<BlockSource> {
        let object = open_version(self, head, range.clone()).await?;
        Ok(BlockSource::Store(object.stream(range)))
    }

    /// Opens the file of a block, if it is in the cache and whole.
    pub(super) async fn open_stored(
        self: &Arc<Self>,
        head: &Arc<Head>,
        number: u64,
    ) -> Result<Option<Arc<File>>> {
        let name = match head.is_small() {
            true => head.file,
            false => head.block(number),
        };
        // The name of a block has the version; that of a small object has not.
        if !head.is_small()
            && let Some(file) = self.cache.try_open(&name)
        {
            self.cache.stamp_part(&name, &head.file);
            return Ok(Some(Arc::new(file)));
        }
        if self.cache.is_complete() && !self.cache.contains(&name) {
            return Ok(None);
        }
        let (inner, head) = (self.clone(), head.clone());
        let turn = self.cache.turn(&name).await;
        let open = move || {
            let opened = inner.cache.open_file(&name, turn)?;
            let record = Record::read(&opened.file, !opened.is_trusted);
            let len = head.block_len(number);
            match record {
                Ok(Some(record)) if head.is_of(&record) && record.content_bytes == len => {
                    inner.cache.trust(&name);
                    // The time of a file with a record is that of the last confirmation.
                    match head.is_small() {
                        true => head.is_stored.store(true, Release),
                        false => inner.cache.stamp_part(&name, &head.file),
                    }
                    return Some(opened.file);
                }
                Ok(Some(record)) if head.is_small() && !head.is_of(&record) => {} // Replaced.
                // Torn by a power cut, or not readable. If it stays, it is still so.
                _ => drop(inner.cache.remove(&name)),
            }
            None
        };
        let file = self.cache.pool().run(open).await?;
        Ok(file.map(Arc::new))
    }
}

impl ReadAt for EdgeReader {
    fn read(
        &self,
        offset: u64,
        len_max: usize,
        mut buf: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            let room = len_max.min(buf.capacity() - buf.len()) as u64;
            let size = self.head.meta.size;
            let range = offset.min(size)..offset.saturating_add(room).min(size);
            let mut stream = self.stream(range);
            while let Some(piece) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
                buf.extend_from_slice(&piece?);
            }
            Ok(buf)
        })
    }

    fn local_parts(&self, range: Range<u64>) -> Option<Vec<FilePart>> {
        let block_bytes = self.head.block_bytes;
        let blocks = range.start / block_bytes..range.end.div_ceil(block_bytes);
        if blocks.end.saturating_sub(blocks.start) > PARTS_MAX {
            return None;
        }
        let part = |number: u64| {
            let start = number * block_bytes;
            let offset = range.start.max(start) - start;
            Some(FilePart {
                file: self.open_at_once(number)?,
                offset,
                len: range.end.min(start + block_bytes) - start - offset,
            })
        };
        blocks.map(part).collect()
    }

    fn stream(&self, range: Range<u64>) -> ByteStream {
        let first = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let number = range.start / self.head.block_bytes;
        Box::pin(Pieces {
            state: Some(ReaderState {
                inner: self.inner.clone(),
                head: self.head.clone(),
                current: first
                    .filter(|(first, _)| *first == number)
                    .map(|(first, reading)| (first, BlockSource::Filling(reading))),
                member: self.member.clone(),
                range,
            }),
            next: None,
        })
    }
}

impl EdgeReader {
    /// A block that is in the cache and can be opened without waiting.
    fn open_at_once(&self, number: u64) -> Option<Arc<File>> {
        if self.head.is_small() {
            return None; // It is opened as a local file.
        }
        let name = self.head.block(number);
        let file = self.inner.cache.try_open(&name)?;
        self.inner.cache.stamp_part(&name, &self.head.file);
        file.may_stay_open(FileUse::Download)
            .then(|| Arc::new(file))
    }
}

/// The stream of a range.
struct Pieces {
    /// `None` while the next piece is read, and after an error.
    state: Option<ReaderState>,
    next: Option<LocalFuture<'static, Result<(ReaderState, Bytes)>>>,
}

struct ReaderState {
    inner: Arc<EdgeInner>,
    head: Arc<Head>,
    /// The number of the block that is read.
    current: Option<(u64, BlockSource)>,
    /// The run that transfers blocks ahead of this reader.
    member: Option<Arc<Member>>,
    /// What has not been returned yet.
    range: Range<u64>,
}

impl Stream for Pieces {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let this = &mut *self;
        if let Some(state) = this.state.take_if(|state| !state.range.is_empty()) {
            this.next = Some(Box::pin(state.next()));
        }
        let Some(next) = &mut this.next else {
            return Poll::Ready(None);
        };
        let read = ready!(next.as_mut().poll(cx));
        this.next = None;
        Poll::Ready(Some(read.map(|(state, bytes)| {
            this.state = Some(state);
            bytes
        })))
    }
}

impl ReaderState {
    /// Reads the next piece.
    async fn next(mut self) -> Result<(ReaderState, Bytes)> {
        loop {
            let at = self.range.start;
            let number = at / self.head.block_bytes;
            let from = match &mut self.current {
                Some((_, BlockSource::Store(stream))) => {
                    let piece = poll_fn(|cx| stream.as_mut().poll_next(cx)).await;
                    let piece = piece.unwrap_or(Err(ended_early()));
                    if piece == Err(StoreError::Changed) {
                        self.inner.heads.forget_version(&self.head);
                    }
                    return Ok(self.advance(piece?));
                }
                Some((current, from)) if *current == number => from,
                _ => {
                    // Closed first, so that one file is open at a time. The run goes on.
                    if let Some((_, BlockSource::Filling(reading))) = self.current.take() {
                        self.member = Some(reading.member);
                    }
                    if let Some(member) = &self.member {
                        member.reads(number);
                    }
                    let opened = self.inner.open_block(&self.head, number, self.range.end);
                    let opened = opened.await?;
                    if !matches!(opened, BlockSource::File(_)) {
                        self.member = None;
                    }
                    self.current = Some((number, opened));
                    continue;
                }
            };
            let offset = at - number * self.head.block_bytes;
            let end = (self.range.end - at).min(self.head.block_len(number) - offset);
            let (file, ready) = match from {
                BlockSource::File(file) => (file.clone(), end),
                BlockSource::Filling(reading) => {
                    let look = |state: &FillState| match state.end {
                        _ if state.written > offset => {
                            Some(Ok((state.file.clone(), state.written - offset)))
                        }
                        Some(end) => Some(Err(end)),
                        None => None,
                    };
                    match reading.fill.state.until(look).await {
                        Ok((Some(file), ready)) => (file, ready.min(end)),
                        Err(FillEnd::Failed(error)) => return Err(error),
                        Ok((None, _)) | Err(FillEnd::NotStored | FillEnd::Whole) => {
                            let range = self.range.clone();
                            let stream = self.inner.uncached(&self.head, range).await?;
                            self.current = Some((number, stream));
                            continue;
                        }
                    }
                }
                BlockSource::Store(_) => return Err(ended_early()),
            };
            let len = ready.min(PIECE_BYTES) as usize;
            let file = LocalFile::new(file, self.inner.cache.pool().clone());
            let piece = file.read(offset, len, Vec::with_capacity(len)).await?;
            if piece.is_empty() {
                return Err(ended_early());
            }
            return Ok(self.advance(piece.into()));
        }
    }

    fn advance(mut self, piece: Bytes) -> (ReaderState, Bytes) {
        self.range.start += piece.len() as u64;
        (self, piece)
    }
}

fn ended_early() -> StoreError {
    StoreError::Io(io::ErrorKind::UnexpectedEof.into())
}
