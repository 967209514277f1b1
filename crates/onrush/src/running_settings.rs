//! The settings that can change while a server runs, as the engine uses them. Programs set
//! [`crate::RunningSettings`], from which these are made.

use crate::log::AccessLog;
use crate::trusted_peers::TrustedPeers;
use onrush_proto::limits::Limits;

/// One copy of each worker. The fields are those of [`crate::RunningSettings`].
#[derive(Clone, Debug)]
pub(crate) struct RunningSettings {
    pub(crate) limits: Limits,
    pub(crate) connections_max: usize,
    pub(crate) access_log: AccessLog,
    pub(crate) rebalance: bool,
    pub(crate) trusted_proxies: TrustedPeers,
}
