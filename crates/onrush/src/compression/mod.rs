//! Compression: codings, what clients accept, and encoders. With the feature `compression`.
//!
//! Modules, lowest first: `media_types` · `codings` · `encoder`.

mod codings;
mod encoder;
mod media_types;

pub use codings::{Accepted, Coding};
pub use encoder::{Encoder, Then};
pub use media_types::is_compressible;
