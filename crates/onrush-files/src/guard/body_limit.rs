//! The limit on the length of a request body.

use crate::files::http::http_error::HttpError;
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use std::rc::Rc;
use std::task::Context;

const BODY_TOO_LARGE: HttpError = HttpError::new(413, "request body too large");

/// Applies a limit to a request. Fails with 413 if the announced body is longer.
pub(super) fn limit(request: &mut Request, bytes_max: u64) -> Result<(), HttpError> {
    if bytes_max == u64::MAX {
        return Ok(());
    }
    let limited = request.body().set_limit(bytes_max);
    limited.map_err(|_| BODY_TOO_LARGE)
}

/// An application behind a limit on bodies, as
/// [`Guard::body_bytes_max`](crate::Guard::body_bytes_max). Behind [`Access`](crate::Access), a
/// client that may not write learns that before the size counts.
#[derive(Clone, Debug)]
pub struct BodyLimit<A> {
    bytes_max: u64,
    application: A,
}

impl<A> BodyLimit<A> {
    /// Passes requests with a body of at most `bytes_max` bytes to `application`.
    pub fn new(bytes_max: u64, application: A) -> BodyLimit<A> {
        BodyLimit {
            bytes_max,
            application,
        }
    }
}

impl<A: Application> Application for BodyLimit<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(BodyLimitService {
            bytes_max: self.bytes_max,
            service: self.application.instantiate(worker),
        })
    }
}

/// One worker's instance.
struct BodyLimitService {
    bytes_max: u64,
    service: Rc<dyn Service>,
}

impl Service for BodyLimitService {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        match limit(&mut request, self.bytes_max) {
            Ok(()) => self.service.start(request, cx, response),
            Err(failure) => {
                *response = Some(failure.into_response(&request));
                None
            }
        }
    }
}
