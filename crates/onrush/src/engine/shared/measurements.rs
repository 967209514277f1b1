//! The measurements of requests: that of the request which is being started, and those of requests
//! whose responses were not ready at once, which are in their connections.

use crate::engine::connection::{Conn, Exchange};
use crate::metrics::{Measured, Recorder};
use crate::params::Template;
use onrush_proto::head::Head;
use std::cell::RefCell;
use std::rc::Rc;

/// Measures the requests of one worker.
pub(in crate::engine) struct Measurements {
    /// `None` without metrics.
    recorder: Option<Recorder>,
    /// Of the request that is being started, until its response is sent or its handler is pending.
    present: RefCell<Option<Measured>>,
}

impl Measurements {
    pub(in crate::engine) fn new(recorder: Option<Recorder>) -> Measurements {
        Measurements {
            recorder,
            present: RefCell::default(),
        }
    }

    #[inline]
    pub(in crate::engine) fn are_on(&self) -> bool {
        self.recorder.is_some()
    }

    /// Begins to measure a request with the head `bytes`.
    pub(in crate::engine) fn begin(&self, head: &Head, bytes: &[u8], is_tls: bool) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let body_bytes = head.content_length().unwrap_or(0);
        let measured = recorder.begin(head.method(bytes), is_tls, head.version(), body_bytes);
        self.present.replace(Some(measured));
    }

    /// Stores the route of the request that is being started.
    pub(in crate::engine) fn set_route(&self, template: &Rc<Template>) {
        if self.are_on()
            && let Some(measured) = self.present.borrow_mut().as_mut()
        {
            measured.route = Some(template.clone());
        }
    }

    /// The handler of the request that is being started is pending.
    pub(in crate::engine) fn suspend(&self, exchange: &mut Exchange) {
        if self.are_on() {
            exchange.measured = self.present.take();
        }
    }

    /// Stores the status and size of a response of HTTP/1.
    #[inline(never)]
    pub(in crate::engine) fn respond(&self, conn: &mut Conn, status: u16, body_bytes: Option<u64>) {
        let exchange = conn.active.as_mut().map(|active| &mut active.exchange);
        self.respond_to(exchange, status, body_bytes);
    }

    /// Stores the status and size of a response. `exchange`: that of the request, if it has one.
    pub(in crate::engine) fn respond_to(
        &self,
        exchange: Option<&mut Exchange>,
        status: u16,
        body_bytes: Option<u64>,
    ) {
        let mut present = self.present.borrow_mut();
        let measured = match present.as_mut() {
            Some(measured) => Some(measured),
            None => exchange.and_then(|exchange| exchange.measured.as_mut()),
        };
        if let Some(measured) = measured {
            (measured.status, measured.response_bytes) = (status, body_bytes);
        }
    }

    /// Ends the measurement of the present request of a connection of HTTP/1.
    #[inline(never)]
    pub(in crate::engine) fn end(&self, conn: &mut Conn) {
        self.end_of(conn.active.as_mut().map(|active| &mut active.exchange));
    }

    /// Ends the measurement of a request. `exchange`: that of the request, if it has one.
    pub(in crate::engine) fn end_of(&self, exchange: Option<&mut Exchange>) {
        let waiting = || exchange?.measured.take();
        let measured = self.present.take().or_else(waiting);
        if let Some((recorder, measured)) = self.recorder.as_ref().zip(measured) {
            recorder.end(&measured);
        }
    }

    /// A request ends without a response.
    pub(in crate::engine) fn abort(&self, measured: &Measured) {
        if let Some(recorder) = &self.recorder {
            recorder.abort(measured);
        }
    }

    /// The request that is being started ends without a response.
    pub(in crate::engine) fn abort_present(&self) {
        if let Some(measured) = self.present.take() {
            self.abort(&measured);
        }
    }

    /// Makes what has ended visible in the metrics.
    #[inline]
    pub(in crate::engine) fn record(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.record();
        }
    }
}
