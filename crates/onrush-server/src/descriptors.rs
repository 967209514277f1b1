//! The limit on open descriptors, which bounds the number of connections. Must not know what they
//! are used for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fewer than this are worth a word: a server of this kind is made for thousands.
const FEW: u64 = 4096;

/// Raises the soft limit to the hard one (`setrlimit(2)`), and says so when that is low.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let raised = setrlimit(Resource::Nofile, wanted);
    if let Err(error) = &raised {
        tracing::debug!(%error, "the limit on open descriptors stays");
    }
    let in_force = match raised {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // None: no limit.
    if let Some(descriptors) = in_force.filter(|&descriptors| descriptors < FEW) {
        tracing::warn!(
            descriptors,
            "few connections are possible; raise the limit on open files (ulimit -n)"
        );
    }
}
