//! What GET and HEAD of objects use.

use crate::files::get::siblings::Siblings;
use crate::files::object::cache::Cache;
use crate::files::shared::budget::Budget;
use crate::files::shared::objects::Objects;
use onrush_rt::blocking::BlockingPool;
use std::sync::Arc;

/// GET and HEAD of objects: what is in memory, and how objects are loaded and encoded.
pub(in crate::files) struct Reads {
    pub(in crate::files) objects: Arc<Objects>,
    /// Closes the local files that the store has handed out.
    pub(in crate::files) pool: BlockingPool,
    pub(in crate::files) cache: Arc<Cache>,
    pub(in crate::files) siblings: Siblings,
    /// The budget of encoders.
    pub(in crate::files) encoder_budget: Arc<Budget>,
    /// Places for the first pieces of compressed objects in the offload pool.
    pub(in crate::files) first_jobs: Arc<Budget>,
    /// The budget of objects in memory: in the cache, or in responses to slow clients.
    pub(in crate::files) object_budget: Arc<Budget>,
}
