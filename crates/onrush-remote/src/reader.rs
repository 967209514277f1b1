//! Reads an object. One request opens it and returns the bytes that the caller wants, or none. Each
//! later request asks for the same version, so bytes of two versions are never mixed.

use crate::error::store_error;
use crate::fields::metadata_of;
use crate::observer::seen;
use crate::properties::properties;
use crate::service::Service;
use bytes::Bytes;
use futures_core::Stream;
use object_store::path::Path;
use object_store::{Attributes, Error, GetOptions, GetRange, ObjectMeta, ObjectStore};
use onrush_store::{ByteStream, LocalFuture, Object, ReadAt, Result, StoreError, Wanted};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// An object up to this size is held in memory while it is read, so its connection is free for the
/// next request.
const HELD_BYTES_MAX: u64 = 256 * 1024;

type Pieces = Pin<Box<dyn Stream<Item = object_store::Result<Bytes>> + Send>>;

/// Opens an object, until `until`.
pub(crate) async fn open(
    service: &Arc<Service>,
    until: Instant,
    path: Path,
    wanted: Wanted,
) -> Result<Object> {
    let part = match wanted {
        Wanted::All => Part::All,
        Wanted::Properties => Part::None,
        Wanted::Range(range) => Part::Range(range),
    };
    let (has_bytes, has_range) = (!matches!(part, Part::None), matches!(part, Part::Range(_)));
    let (found, has_bytes) = match get(service, until, &path, None, part, Hold::Small).await {
        // The range lies beyond the end: 416, which has no kind of its own.
        Err(StoreError::Io(_)) if has_range => {
            let found = get(service, until, &path, None, Part::None, Hold::Nothing).await?;
            (found, false)
        }
        found => (found?, has_bytes),
    };
    let (meta, metadata) = (properties(&found.meta)?, metadata_of(&found.attributes));
    let first = match found.content {
        Content::Held(bytes) => First::Whole(bytes),
        Content::Arriving(pieces) if has_bytes => {
            First::Pieces(Mutex::new(Some(pieces)), found.range)
        }
        Content::Arriving(_) | Content::Failed(_) => First::Pieces(Mutex::default(), 0..0),
    };
    let reader = Reader {
        service: service.clone(),
        path,
        tag: meta.version.as_str().to_owned(),
        first,
    };
    Ok(Object::from_reader(meta, metadata, Arc::new(reader)))
}

/// What a request asks for besides the properties.
#[derive(Clone, Debug)]
enum Part {
    None,
    All,
    /// The end may lie beyond that of the object.
    Range(Range<u64>),
}

/// What to receive before the response is returned.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Nothing,
    /// A whole object up to [`HELD_BYTES_MAX`].
    Small,
    All,
}

/// The response to a request.
struct FoundObject {
    meta: ObjectMeta,
    attributes: Attributes,
    range: Range<u64>,
    content: Content,
}

/// The bytes of a range.
enum Content {
    Held(Bytes),
    Arriving(Pieces),
    /// Not all bytes to hold have arrived.
    Failed(StoreError),
}

/// Requests an object or a part of it. The response, and the bytes to hold, have to arrive until
/// `until`. With `tag`, fails with [`StoreError::Changed`] if it is
/// not the same version any more. Bytes to hold are received by the same task of the runtime,
/// because each task wakes a thread.
fn get(
    service: &Service,
    until: Instant,
    path: &Path,
    tag: Option<&str>,
    part: Part,
    hold: Hold,
) -> impl Future<Output = Result<FoundObject>> + use<> {
    let is_head = matches!(part, Part::None);
    let options = GetOptions {
        if_match: tag.map(str::to_owned),
        head: is_head,
        range: match part {
            Part::None | Part::All => None,
            Part::Range(range) if range.end == u64::MAX => Some(GetRange::Offset(range.start)),
            Part::Range(range) => Some(GetRange::Bounded(range)),
        },
        ..GetOptions::default()
    };
    let (client, path, is_pinned) = (service.client.clone(), path.clone(), tag.is_some());
    let task = service.start(until, async move {
        let mut found = client.get_opts(&path, options).await?;
        let (range, attributes) = (found.range.clone(), std::mem::take(&mut found.attributes));
        let (meta, len) = (found.meta.clone(), range.end - range.start);
        let pieces = found.into_stream();
        let is_held = match hold {
            Hold::Nothing => false,
            Hold::Small => !is_head && len == meta.size && len <= HELD_BYTES_MAX,
            Hold::All => true,
        };
        let content = match is_held {
            true => match collect(pieces, len).await {
                Ok(bytes) => Content::Held(bytes),
                Err(error) => Content::Failed(store_error(&error, seen().last)),
            },
            false => Content::Arriving(pieces),
        };
        Ok(FoundObject {
            meta,
            attributes,
            range,
            content,
        })
    });
    async move {
        match task.await {
            // Deleted since then, or another version.
            Err(StoreError::PreconditionFailed | StoreError::NotFound) if is_pinned => {
                Err(StoreError::Changed)
            }
            Ok(FoundObject {
                content: Content::Failed(error),
                ..
            }) => Err(match error {
                // The connection was lost, and the object that has the key now is shorter: 416.
                StoreError::Io(_) => StoreError::Changed,
                error => error,
            }),
            result => result,
        }
    }
}

/// All bytes of a response, of which there must be `len`.
async fn collect(mut pieces: Pieces, len: u64) -> object_store::Result<Bytes> {
    let mut all: Vec<Bytes> = Vec::new();
    while let Some(piece) = std::future::poll_fn(|cx| pieces.as_mut().poll_next(cx)).await {
        all.push(piece?);
    }
    let all = match &all[..] {
        [one] => one.clone(),
        many => many.concat().into(),
    };
    match all.len() as u64 == len {
        true => Ok(all),
        false => Err(ended_early()),
    }
}

/// A response with fewer bytes than it announced.
fn ended_early() -> Error {
    Error::Generic {
        store: "S3",
        source: Box::new(io::Error::from(io::ErrorKind::UnexpectedEof)),
    }
}

struct Reader {
    service: Arc<Service>,
    path: Path,
    /// The entity tag without quotes: Ceph 16 does not accept them.
    tag: String,
    first: First,
}

/// What the first request returned.
enum First {
    Whole(Bytes),
    /// The bytes of a range, until the first reader takes them.
    Pieces(Mutex<Option<Pieces>>, Range<u64>),
}

impl Reader {
    /// The bytes from the first request, if they begin `range` and are not taken.
    fn take_first(&self, range: &Range<u64>) -> Option<(Pieces, u64)> {
        match &self.first {
            First::Pieces(pieces, of) if of.start == range.start && !of.is_empty() => {
                let pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner).take();
                pieces.map(|pieces| (pieces, of.end))
            }
            _ => None,
        }
    }
}

impl ReadAt for Reader {
    fn read(
        &self,
        offset: u64,
        len_max: usize,
        mut buf: Vec<u8>,
    ) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            let room = len_max.min(buf.capacity() - buf.len()) as u64;
            if let First::Whole(bytes) = &self.first {
                let from = offset.min(bytes.len() as u64);
                let end = (from + room).min(bytes.len() as u64);
                buf.extend_from_slice(&bytes[from as usize..end as usize]);
                return Ok(buf);
            }
            if room == 0 {
                return Ok(buf);
            }
            let part = Part::Range(offset..offset.saturating_add(room));
            let (service, tag) = (&self.service, Some(&self.tag[..]));
            match get(service, service.limit(), &self.path, tag, part, Hold::All).await {
                Err(StoreError::Io(_)) => {} // 416: the range begins at the end.
                found => {
                    if let Content::Held(bytes) = found?.content {
                        buf.extend_from_slice(&bytes[..bytes.len().min(room as usize)]);
                    }
                }
            }
            Ok(buf)
        })
    }

    fn stream(&self, range: Range<u64>) -> ByteStream {
        if let First::Whole(bytes) = &self.first {
            let piece = bytes.slice(range.start as usize..range.end as usize);
            return Box::pin(Once((!piece.is_empty()).then_some(piece)));
        }
        let state = match self.take_first(&range) {
            Some((pieces, end)) => ReaderState::Pieces(pieces, end.min(range.end)),
            None => ReaderState::Idle,
        };
        Box::pin(Remaining {
            service: self.service.clone(),
            path: self.path.clone(),
            tag: self.tag.clone(),
            range,
            state,
        })
    }
}

/// A stream of one piece.
struct Once(Option<Bytes>);

impl Stream for Once {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        Poll::Ready(self.0.take().map(Ok))
    }
}

/// A stream of a range.
struct Remaining {
    service: Arc<Service>,
    path: Path,
    tag: String,
    /// What has not been returned yet.
    range: Range<u64>,
    state: ReaderState,
}

enum ReaderState {
    /// The next poll makes a request.
    Idle,
    Requested(LocalFuture<'static, Result<FoundObject>>),
    /// Bytes up to this offset arrive.
    Pieces(Pieces, u64),
}

impl Stream for Remaining {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        let this = &mut *self;
        loop {
            if this.range.is_empty() {
                return Poll::Ready(None);
            }
            match &mut this.state {
                ReaderState::Idle => {
                    let part = Part::Range(this.range.clone());
                    let (service, tag) = (&this.service, Some(&*this.tag));
                    let until = service.limit();
                    let request = get(service, until, &this.path, tag, part, Hold::Nothing);
                    this.state = ReaderState::Requested(Box::pin(request));
                }
                ReaderState::Requested(request) => match ready!(request.as_mut().poll(cx)) {
                    Ok(FoundObject {
                        range,
                        content: Content::Arriving(pieces),
                        ..
                    }) if range == this.range => {
                        this.state = ReaderState::Pieces(pieces, range.end)
                    }
                    Ok(_) => return Poll::Ready(Some(Err(StoreError::Changed))),
                    Err(error) => return Poll::Ready(Some(Err(error))),
                },
                ReaderState::Pieces(pieces, end) => {
                    let entered = this.service.enter(); // For the time limit of the transfer.
                    let piece = ready!(pieces.as_mut().poll_next(cx));
                    drop(entered);
                    match piece {
                        Some(Ok(piece)) if piece.is_empty() => {}
                        Some(Ok(mut piece)) => {
                            let left = *end - this.range.start;
                            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                            this.range.start += piece.len() as u64;
                            if this.range.start == *end {
                                this.state = ReaderState::Idle;
                            }
                            return Poll::Ready(Some(Ok(piece)));
                        }
                        Some(Err(error)) => {
                            return Poll::Ready(Some(Err(store_error(&error, None))));
                        }
                        None => {
                            let error = io::ErrorKind::UnexpectedEof;
                            return Poll::Ready(Some(Err(StoreError::Io(error.into()))));
                        }
                    }
                }
            }
        }
    }
}
