//! How a handler learns that the server ends.

use super::Request;
use crate::drain::Draining;

impl Request {
    /// Resolves when the worker of this request begins a graceful shutdown
    /// ([`Handle::shutdown`](crate::Handle::shutdown)). A response without an end, such as a stream
    /// of events, should end then: the shutdown waits for it.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    ///
    /// async fn events(request: Request) -> Response {
    ///     let (sender, body) = Body::channel(1024);
    ///     let draining = request.draining();
    ///     let task = request.worker().spawn(async move {
    ///         draining.await;
    ///         sender.finish(); // This ends the body.
    ///     });
    ///     task.detach();
    ///     Response::with_body(body)
    /// }
    ///
    /// let mut sim = Simulation::new(1, &events, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// assert!(!client.receive()?.ends_with(b"0\r\n\r\n"));
    /// sim.drain();
    /// sim.run();
    /// assert!(client.receive()?.ends_with(b"0\r\n\r\n"));
    /// assert!(client.at_end());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn draining(&self) -> Draining {
        self.parts().connections.draining()
    }
}
