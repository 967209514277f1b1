//! An object in memory.

use bytes::Bytes;
use s3s::dto::{CacheControl, ContentDisposition, ContentEncoding, ContentLanguage, ContentType};
use std::collections::HashMap;
use std::time::SystemTime;

/// An object.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its bytes.
    pub content: Bytes,
    /// Its entity tag, without quotes.
    pub tag: String,
    /// The fields that describe it.
    pub fields: Fields,
    /// When it was made.
    pub modified: SystemTime,
}

/// The fields of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// `Content-Type`.
    pub content_type: Option<ContentType>,
    /// `Content-Encoding`.
    pub content_encoding: Option<ContentEncoding>,
    /// `Content-Language`.
    pub content_language: Option<ContentLanguage>,
    /// `Content-Disposition`.
    pub content_disposition: Option<ContentDisposition>,
    /// `Cache-Control`.
    pub cache_control: Option<CacheControl>,
    /// `x-amz-meta-*`, by the rest of the name.
    pub metadata: Option<HashMap<String, String>>,
}
