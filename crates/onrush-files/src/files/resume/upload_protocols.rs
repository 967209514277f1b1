//! What the protocols of uploads that continue use.

use crate::files::receive::upload::UploadBuffers;
use crate::files::shared::objects::Objects;
use crate::files::uploads::Uploads;
use std::sync::Arc;

/// Uploads that continue in later requests: those of the draft, and of tus.
pub(in crate::files) struct UploadProtocols {
    pub(in crate::files) objects: Arc<Objects>,
    pub(in crate::files) upload_buffers: Arc<UploadBuffers>,
    pub(in crate::files) uploads: Arc<Uploads>,
}
