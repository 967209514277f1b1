//! Records each request to the service, of `object_store` and of this crate: its duration and
//! outcome for the metrics, and for the breaker what it says about whether the service responds.

use crate::breaker::Breaker;
use crate::error::Failure;
use crate::metrics::{Outcome, RemoteMetrics};
use http::header::HeaderMap;
use http::{Method, StatusCode};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Where requests are recorded.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    pub(crate) metrics: Arc<RemoteMetrics>,
    pub(crate) breaker: Arc<Breaker>,
}

/// Why there is no response, with the error of the client.
pub(crate) type NoResponse<'a> = (Failure, Option<&'a (dyn Error + 'static)>);

impl Recorder {
    /// Begins to record a request that is sent now.
    pub(crate) fn begin(&self, method: Method) -> Recorded {
        let begun = Instant::now();
        self.breaker.begin(begun);
        Recorded {
            recorder: self.clone(),
            method,
            begun,
            is_open: true,
        }
    }
}

/// A request in progress. If it is dropped, its caller does not want it any more: it is counted,
/// but says nothing about the service.
#[derive(Debug)]
pub(crate) struct Recorded {
    recorder: Recorder,
    method: Method,
    begun: Instant,
    is_open: bool,
}

impl Recorded {
    /// Records the result. Returns how the request failed, if it did.
    pub(crate) fn end(
        mut self,
        result: Result<(StatusCode, &HeaderMap), NoResponse<'_>>,
    ) -> Option<Failure> {
        let (outcome, failure, error) = match result {
            Ok((status, headers)) => {
                let failure = Failure::of_response(status, headers);
                let failure = (!status.is_success()).then_some(failure);
                (Outcome::Status(status.as_u16()), failure, None)
            }
            Err((failure, error)) => (Outcome::Failed, Some(failure), error),
        };
        self.count(outcome);
        let breaker = &self.recorder.breaker;
        breaker.record(failure, error, Instant::now());
        failure
    }

    fn count(&mut self, outcome: Outcome) {
        self.is_open = false;
        let metrics = &self.recorder.metrics;
        metrics.record(self.method.as_str(), outcome, self.begun.elapsed());
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if self.is_open {
            self.recorder.breaker.give_up();
            self.count(Outcome::Cancelled);
        }
    }
}
