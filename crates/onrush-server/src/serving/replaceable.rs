//! An application that can be replaced while the server runs, for new settings.

use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;

/// An application whose type is known at run time only. A request costs no more for it.
pub(crate) struct Boxed(Box<dyn Application>);

impl Boxed {
    pub(crate) fn new(application: impl Application) -> Boxed {
        Boxed(Box::new(application))
    }
}

impl Application for Boxed {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        self.0.instantiate(worker)
    }
}

/// The application in use. Clones share it. A worker compares a generation per request, and makes
/// an instance of the new application when that has changed.
#[derive(Clone)]
pub(crate) struct Replaceable(Arc<Current>);

struct Current {
    generation: AtomicU64,
    application: Mutex<Arc<Boxed>>,
}

impl Replaceable {
    pub(crate) fn new(application: Boxed) -> Replaceable {
        Replaceable(Arc::new(Current {
            generation: AtomicU64::new(0),
            application: Mutex::new(Arc::new(application)),
        }))
    }

    /// Replaces the application. Requests that begin afterwards are for the new one; those in
    /// progress continue with the previous one.
    pub(crate) fn replace(&self, application: Boxed) {
        let mut current = (self.0.application.lock()).unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(application);
        self.0.generation.fetch_add(1, Ordering::Release);
    }

    fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// The generation, and an instance of the application of it or of a later one.
    fn get(&self, worker: &WorkerHandle) -> (u64, Rc<dyn Service>) {
        let generation = self.generation();
        let current = self.0.application.lock();
        let application = current.unwrap_or_else(PoisonError::into_inner).clone();
        (generation, application.instantiate(worker))
    }
}

impl Application for Replaceable {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(ReplaceableService {
            current: RefCell::new(self.get(worker)),
            source: self.clone(),
            worker: worker.clone(),
        })
    }
}

/// One worker's instance.
struct ReplaceableService {
    source: Replaceable,
    worker: WorkerHandle,
    current: RefCell<(u64, Rc<dyn Service>)>,
}

impl ReplaceableService {
    fn service(&self) -> Rc<dyn Service> {
        if self.current.borrow().0 != self.source.generation() {
            let new = self.source.get(&self.worker);
            let previous = self.current.replace(new);
            drop(previous); // After the borrow: its requests may have ended.
        }
        self.current.borrow().1.clone()
    }
}

impl Service for ReplaceableService {
    fn start(
        &self,
        request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        self.service().start(request, cx, response)
    }
}
