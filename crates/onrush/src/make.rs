//! Making the handlers of a router on each worker, the layers around them, and the states that they
//! reach.

use crate::handler::{Handler, Pending, Service, erase};
use crate::request::{Request, RouterState};
use crate::response::{IntoResponse, Response};
use crate::worker::WorkerHandle;
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Creates the instance of a handler for one worker.
pub(crate) trait Make: Send + Sync {
    fn make(&self, making: &Making<'_>) -> Rc<dyn Service>;
}

impl<H: Handler + Clone + Send + Sync> Make for H {
    fn make(&self, _: &Making<'_>) -> Rc<dyn Service> {
        erase(self.clone())
    }
}

/// The making of all handlers of one worker.
pub(crate) struct Making<'w> {
    worker: &'w WorkerHandle,
    /// The states so far, by the identity of their source: the handlers of a worker share them.
    made: RefCell<Vec<(usize, Rc<dyn Any>)>>,
}

impl Making<'_> {
    pub(crate) fn new(worker: &WorkerHandle) -> Making<'_> {
        let made = RefCell::default();
        Making { worker, made }
    }

    fn state(&self, source: &StateSource) -> Rc<dyn Any> {
        let address = Arc::as_ptr(&source.identity).addr();
        let known = self.made.borrow();
        if let Some((_, state)) = known.iter().find(|(known, _)| *known == address) {
            return state.clone();
        }
        drop(known);
        let state = (source.make)(self.worker);
        self.made.borrow_mut().push((address, state.clone()));
        state
    }
}

type OpenState = dyn Fn(&WorkerHandle) -> Rc<dyn Any> + Send + Sync;

/// Where each worker gets a state from. Clones are the same state.
#[derive(Clone)]
pub(crate) struct StateSource {
    pub(crate) type_id: TypeId,
    make: Arc<OpenState>,
    /// Its address, because that of a closure without a size would not be unique.
    identity: Arc<u8>,
}

impl StateSource {
    /// All workers have this value. Each has a reference count of its own for it.
    pub(crate) fn shared<T: Send + Sync + 'static>(value: T) -> StateSource {
        let value = Arc::new(value);
        StateSource::new::<T>(move |_| RouterState::Shared(value.clone()))
    }

    /// Each worker makes its own value.
    pub(crate) fn per_worker<T: 'static>(
        make: impl Fn(&WorkerHandle) -> T + Send + Sync + 'static,
    ) -> StateSource {
        StateSource::new::<T>(move |worker| RouterState::Own(make(worker)))
    }

    fn new<T: 'static>(
        make: impl Fn(&WorkerHandle) -> RouterState<T> + Send + Sync + 'static,
    ) -> StateSource {
        StateSource {
            type_id: TypeId::of::<T>(),
            make: Arc::new(move |worker| Rc::new(make(worker))),
            identity: Arc::default(),
        }
    }
}

/// A handler whose requests reach states.
pub(crate) struct Stated {
    pub(crate) states: Vec<StateSource>,
    pub(crate) inner: Arc<dyn Make>,
}

impl Make for Stated {
    fn make(&self, making: &Making<'_>) -> Rc<dyn Service> {
        let states = self.states.iter().map(|source| making.state(source));
        Rc::new(WithStates {
            states: states.collect(),
            inner: self.inner.make(making),
        })
    }
}

struct WithStates {
    states: Vec<Rc<dyn Any>>,
    inner: Rc<dyn Service>,
}

impl Service for WithStates {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        for state in &self.states {
            request.set_extension(state.clone());
        }
        self.inner.start(request, cx, response)
    }
}

/// A layer, and what it is around.
pub(crate) struct Layered<L> {
    pub(crate) layer: L,
    pub(crate) inner: Arc<dyn Make>,
}

/// What handles a request after a layer: the handler, or another layer.
/// [`Router::layer`](crate::Router::layer) has an example.
pub struct Next(Rc<dyn Service>);

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

impl Next {
    pub(crate) fn new(service: Rc<dyn Service>) -> Next {
        Next(service)
    }

    /// The response to `request`, which the layer may have changed.
    pub async fn run(self, request: Request) -> Response {
        let (mut request, mut pending) = (Some(request), None::<Pending>);
        poll_fn(|cx| {
            if let Some(pending) = &mut pending {
                return pending.as_mut().poll(cx);
            }
            let (mut response, request) = (None, request.take());
            let request = request.expect("not polled after its end");
            pending = self.0.start(request, cx, &mut response);
            response.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl<L, Fut> Make for Layered<L>
where
    L: Fn(Request, Next) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoResponse> + 'static,
{
    fn make(&self, making: &Making<'_>) -> Rc<dyn Service> {
        let (layer, inner) = (self.layer.clone(), self.inner.make(making));
        erase(move |request| layer(request, Next(inner.clone())))
    }
}
