//! Simulations whose connections begin with a header of the PROXY protocol.

use super::{Pools, Simulation};
use crate::{Application, Limits, PeerNetwork, TrustedPeers};
use onrush_rt::driver::sim::{Behaviour, Net};

impl Simulation {
    /// [`Simulation::with_workers`] with `receive_bytes_max` bytes of receive memory for each
    /// worker, whose connections begin with a header of the PROXY protocol. Clients are trusted
    /// like those of a Unix socket.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use onrush_rt::driver::sim::Behaviour;
    ///
    /// async fn who(request: Request) -> Response {
    ///     Response::text(request.peer().map_or("?".into(), |peer| peer.to_string()))
    /// }
    ///
    /// let (limits, network) = (Limits::default(), Behaviour::default());
    /// let mut sim = Simulation::with_proxy_protocol(1, &who, limits, network, 1, 1 << 20);
    /// let client = sim.connect();
    /// sim.send(&client, b"PROXY TCP4 192.0.2.1 192.0.2.2 50000 80\r\n");
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// assert!(client.receive()?.ends_with(b"192.0.2.1:50000"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_proxy_protocol(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
        workers: usize,
        receive_bytes_max: usize,
    ) -> Simulation {
        let net = Net::new(seed, behaviour);
        let mut settings = Simulation::settings(workers.max(1), limits, None);
        settings.proxy_protocol = true;
        settings.running.trusted_proxies = TrustedPeers::new([PeerNetwork::Unix]);
        let pools = Pools::inline();
        Simulation::build_within(net, application, settings, &pools, receive_bytes_max)
    }
}
