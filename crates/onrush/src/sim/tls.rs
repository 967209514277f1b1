//! Simulations whose connections use TLS.

use super::{Pools, Simulation};
use crate::engine::TlsSettings;
use crate::{Application, Limits, TlsConfig};
use onrush_rt::driver::sim::{Behaviour, Net};

impl Simulation {
    /// [`Simulation::with_workers`], whose connections use TLS.
    pub fn with_tls(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
        workers: usize,
        config: TlsConfig,
    ) -> Simulation {
        let net = Net::new(seed, behaviour);
        let mut settings = Simulation::settings(workers.max(1), limits, None);
        settings.tls = Some(TlsSettings {
            config,
            listeners: vec![true],
        });
        Simulation::build(net, application, settings, &Pools::inline())
    }

    /// [`Simulation::with_tls`] of one worker, with `receive_bytes_max` bytes of receive memory and
    /// at most `connections_max` open connections.
    pub fn with_tls_limits(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
        config: TlsConfig,
        receive_bytes_max: usize,
        connections_max: usize,
    ) -> Simulation {
        let net = Net::new(seed, behaviour);
        let mut settings = Simulation::settings(1, limits, None);
        settings.running.connections_max = connections_max;
        settings.tls = Some(TlsSettings {
            config,
            listeners: vec![true],
        });
        let pools = Pools::inline();
        Simulation::build_within(net, application, settings, &pools, receive_bytes_max)
    }
}
