//! Removes unfinished uploads that are too old, also those of an earlier process.

pub(super) mod former_users;

use crate::files::handler::Files;
use onrush::handler::Service;
use onrush::{Application, WorkerHandle};
use std::rc::Rc;

/// An application with [`Files`] whose unfinished uploads are looked after from the start on.
/// Without it, that begins with the first upload that can be continued.
#[derive(Clone, Debug)]
pub struct Upkeep<A> {
    files: Files,
    application: A,
}

impl<A> Upkeep<A> {
    /// Passes all requests to `application`, which serves `files`.
    pub fn new(files: &Files, application: A) -> Upkeep<A> {
        Upkeep {
            files: files.clone(),
            application,
        }
    }
}

impl<A: Application> Application for Upkeep<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        let (uploads, objects) = (&self.files.0.lasting.uploads, &self.files.0.objects);
        if uploads.serves(&objects.options) {
            uploads.sweep_from_now_on(worker);
        }
        self.application.instantiate(worker)
    }
}
