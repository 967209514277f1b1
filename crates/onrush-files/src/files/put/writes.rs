//! What changes use that end with their request.

use crate::files::locks::Locking;
use crate::files::put::state_locks::StateLocks;
use crate::files::receive::upload::UploadBuffers;
use crate::files::shared::objects::Objects;
use crate::files::uploads::Uploads;
use std::sync::Arc;

/// Changes that end with their request.
pub(in crate::files) struct Writes {
    pub(in crate::files) objects: Arc<Objects>,
    /// The shared buffers of uploads, and the budget of their other buffers.
    pub(in crate::files) upload_buffers: Arc<UploadBuffers>,
    pub(in crate::files) uploads: Arc<Uploads>,
    pub(in crate::files) locking: Arc<Locking>,
    pub(in crate::files) state_locks: Arc<StateLocks>,
}
