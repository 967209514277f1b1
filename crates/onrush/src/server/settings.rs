//! The settings of a server that can change while it runs, as programs set them.

use crate::limits::Limits;
use crate::log::AccessLog;
use crate::running_settings;
use crate::trusted_peers::TrustedPeers;
use std::time::Duration;

/// The settings of a server that can change while it runs. [`Handle::settings`] returns those in
/// use, and [`Handle::set_settings`] replaces all of them together.
///
/// Each worker has a copy, and takes the new one between two iterations of its event loop. So the
/// requests of one iteration have the same settings, and reading them takes no lock.
///
/// [`Handle::settings`]: crate::Handle::settings
/// [`Handle::set_settings`]: crate::Handle::set_settings
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunningSettings {
    /// See [`Server::limits`](crate::Server::limits). A wait that has begun, such as that of an
    /// idle connection, keeps its deadline.
    pub limits: Limits,
    /// See [`Server::connections_max`](crate::Server::connections_max). A lower limit closes no
    /// connection before a new one arrives. A higher one than the budget of descriptors permits has
    /// no effect.
    pub connections_max: usize,
    /// See [`Server::access_log`](crate::Server::access_log). Exchanges that are in progress when
    /// it changes get no entry.
    pub access_log: AccessLog,
    /// See [`Server::rebalance`](crate::Server::rebalance).
    pub rebalance: bool,
    /// See [`Server::drain_timeout`](crate::Server::drain_timeout). A drain that has begun keeps
    /// its deadline.
    pub drain_timeout: Duration,
    /// The peers that may connect with [`Server::proxy_protocol`](crate::Server::proxy_protocol).
    /// Without effect if the server was started without it. Open connections stay open.
    pub trusted_proxies: TrustedPeers,
}

impl RunningSettings {
    /// The defaults of a server.
    pub(crate) fn new(limits: Limits) -> RunningSettings {
        RunningSettings {
            limits,
            connections_max: usize::MAX,
            access_log: AccessLog::Off,
            rebalance: true,
            drain_timeout: Duration::from_secs(30),
            trusted_proxies: TrustedPeers::default(),
        }
    }

    /// The settings as the engine uses them.
    pub(crate) fn to_engine(&self) -> running_settings::RunningSettings {
        running_settings::RunningSettings {
            limits: self.limits.to_engine(),
            connections_max: self.connections_max,
            access_log: self.access_log,
            rebalance: self.rebalance,
            trusted_proxies: self.trusted_proxies.clone(),
        }
    }
}
