//! The limit on open descriptors, and the budget that connections and files share within it. Must
//! not know what else the server does with them.

use onrush_rt::descriptors::Descriptors;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fewer than this are worth a word: a server of this kind is made for thousands.
const FEW: u64 = 4096;

/// A thread for file work has this many open at a time: folders on the way to a file. Files have
/// places in the budget.
const OF_FILE_THREAD: u64 = 2;
/// A worker's: its ring or epoll, what wakes it, and some that come and go.
const OF_WORKER: u64 = 4;
/// A worker's for each address that it listens on: the driver's, and one that keeps the port.
const OF_LISTENER: u64 = 2;
/// Of the process: its streams, signals, the folder served, the folders for uploads.
const OF_PROCESS: u64 = 16;

/// Raises the soft limit to the hard one (`setrlimit(2)`), and says so when that is low. Gives the
/// limit in force; `None` when there is none.
pub(crate) fn raise() -> Option<u64> {
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
    if let Some(descriptors) = in_force.filter(|&descriptors| descriptors < FEW) {
        tracing::warn!(
            descriptors,
            "few connections are possible; raise the limit on open files (ulimit -n)"
        );
    }
    in_force
}

/// How many files may be kept open for whom asks next.
pub(crate) fn cached_files_max(descriptors: Option<u64>) -> usize {
    const MAX: u64 = 1024;
    descriptors.map_or(MAX, |descriptors| (descriptors / 16).min(MAX)) as usize
}

/// How many threads for file work `wanted` ones come to: each holds descriptors while it works.
pub(crate) fn file_threads(descriptors: Option<u64>, wanted: usize) -> usize {
    let most = descriptors.map_or(u64::MAX, |descriptors| (descriptors / 32).max(2));
    wanted.min(usize::try_from(most).unwrap_or(usize::MAX))
}

/// The descriptors of one worker that listens on so many addresses.
pub(crate) fn of_worker(listeners: usize) -> u64 {
    OF_WORKER + OF_LISTENER * listeners.max(1) as u64
}

/// How many workers there may be by default: all of them together use a quarter of the descriptors
/// at most, and the rest is for connections and files.
pub(crate) fn workers_max(descriptors: Option<u64>, listeners: usize) -> usize {
    let most = descriptors.map_or(u64::MAX, |descriptors| {
        (descriptors / 4 / of_worker(listeners)).max(1)
    });
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// How many connections the admin address takes.
pub(crate) fn admin_connections_max(descriptors: Option<u64>) -> usize {
    const MAX: u64 = 64;
    descriptors.map_or(MAX, |descriptors| (descriptors / 16).clamp(4, MAX)) as usize
}

/// What the process needs descriptors for besides connections and files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnUse {
    pub(crate) workers: usize,
    /// Addresses that each worker listens on.
    pub(crate) listeners: usize,
    pub(crate) file_threads: usize,
    /// Descriptors for other things.
    pub(crate) aside: usize,
}

/// The budget for connections and files: what the process does not need for itself. Connections
/// over the cap, which are about to get a 503, have descriptors too.
pub(crate) fn budget(descriptors: Option<u64>, own: OwnUse) -> Descriptors {
    let Some(descriptors) = descriptors else {
        return Descriptors::default();
    };
    let (workers, file_threads) = (own.workers.max(1) as u64, own.file_threads as u64);
    let of_workers = of_worker(own.listeners) * workers;
    let needed = OF_PROCESS + of_workers + OF_FILE_THREAD * file_threads + own.aside as u64;
    let left = descriptors.saturating_sub(needed);
    let turned_away = workers * (left / 32 / workers).clamp(4, 64);
    Descriptors::new(left.saturating_sub(turned_away))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_their_requests() {
        let most = |descriptors, workers, threads, aside| {
            let own = OwnUse {
                workers,
                listeners: 1,
                file_threads: threads,
                aside,
            };
            budget(descriptors, own).connections_max()
        };
        assert_eq!(most(None, 2, 16, 0), usize::MAX);
        let many = (1 << 20) - 16 - 12 - 32 - 128;
        assert_eq!(most(Some(1 << 20), 2, 16, 0), many - 256 - many / 8);
        let few = 128 - 16 - 12 - 8 - 8;
        assert_eq!(most(Some(128), 2, 4, 0), few - few / 16 - few / 8);
        assert_eq!(most(Some(128), 2, 4, 10), few - 10 - 4 - 9);
        assert_eq!(most(Some(64), 2, 2, 0), 24 - 2 - 3, "not one only");
        assert_eq!(most(Some(3), 64, 1024, 0), 1);
        // However many cores there are, and with an admin address.
        for descriptors in [64, 100, 128, 256] {
            let limit = Some(descriptors);
            let workers = workers_max(limit, 1).min(128);
            let aside = admin_connections_max(limit) + 4 + of_worker(1) as usize;
            let connections = most(limit, workers, file_threads(limit, 16), aside);
            assert!(
                connections as u64 >= descriptors / 16,
                "{descriptors}: {connections}"
            );
        }
        assert_eq!((workers_max(Some(64), 1), workers_max(Some(3), 9)), (2, 1));
        assert_eq!(workers_max(None, 1), usize::MAX);
    }

    #[test]
    fn where_descriptors_are_few_so_are_threads() {
        assert_eq!(file_threads(None, 16), 16);
        assert_eq!(file_threads(Some(512), 16), 16);
        assert_eq!(file_threads(Some(128), 16), 4);
        assert_eq!(file_threads(Some(1024), 1), 1);
        assert_eq!(file_threads(Some(3), 16), 2);
        assert_eq!(admin_connections_max(Some(64)), 4);
        assert_eq!(admin_connections_max(None), 64);
    }
}
