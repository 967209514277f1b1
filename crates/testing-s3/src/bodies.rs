//! The bodies of requests and responses.

use bytes::Bytes;
use futures_core::Stream;
use s3s::dto::StreamingBlob;
use s3s::{S3Result, s3_error};
use std::future::poll_fn;
use std::pin::Pin;

/// All bytes of a request, which must be as many as it has announced.
pub(crate) async fn read(body: Option<StreamingBlob>, length: Option<i64>) -> S3Result<Bytes> {
    let (mut all, Some(mut body)) = (Vec::new(), body) else {
        return Ok(Bytes::new());
    };
    while let Some(piece) = poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await {
        all.extend_from_slice(&piece.map_err(|_| s3_error!(IncompleteBody))?);
    }
    match length {
        Some(length) if length as usize != all.len() => Err(s3_error!(IncompleteBody)),
        _ => Ok(all.into()),
    }
}

/// Such a body of a response.
pub(crate) fn blob(content: Bytes) -> StreamingBlob {
    StreamingBlob::from(s3s::Body::from(content))
}
