//! The limit on open file descriptors (`RLIMIT_NOFILE`), and the budget within it that connections
//! and files share.

use onrush_rt::descriptors::Descriptors;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit below this number causes a warning: the server is meant for thousands of connections.
const LOW_LIMIT: u64 = 4096;

/// Descriptors that a thread of the file pool has open at a time, for the folders of a path. The
/// budget counts files.
const PER_FILE_THREAD: u64 = 2;
/// Descriptors of a worker: its ring or epoll instance, its eventfd, and some short-lived ones.
const PER_WORKER: u64 = 4;
/// Descriptors of a worker for each address that it listens on: the driver's, and one that keeps
/// the port.
const PER_LISTENER: u64 = 2;
/// Descriptors of the process: standard streams, signals, the served folder, folders for uploads.
const PER_PROCESS: u64 = 16;

/// Raises the soft limit to the hard limit (`setrlimit(2)`). Logs a warning if the limit is low.
/// Returns the limit in force, or `None` if there is no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let raised = setrlimit(Resource::Nofile, wanted);
    if let Err(error) = &raised {
        tracing::debug!(%error, "cannot raise the limit on open files");
    }
    let in_force = match raised {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    if let Some(descriptors) = in_force.filter(|&descriptors| descriptors < LOW_LIMIT) {
        tracing::warn!(
            descriptors,
            "few connections are possible; raise the limit on open files (ulimit -n)"
        );
    }
    in_force
}

/// The maximum number of files that the cache keeps open.
pub(crate) fn cached_files_max(descriptors: Option<u64>) -> usize {
    const MAX: u64 = 1024;
    descriptors.map_or(MAX, |descriptors| (descriptors / 16).min(MAX)) as usize
}

/// The number of threads for file work: `wanted`, or fewer if descriptors are short. Each thread
/// holds descriptors while it works.
pub(crate) fn file_threads(descriptors: Option<u64>, wanted: usize) -> usize {
    let max = descriptors.map_or(u64::MAX, |descriptors| (descriptors / 32).max(2));
    wanted.min(usize::try_from(max).unwrap_or(usize::MAX))
}

/// The descriptors of one worker that listens on `listeners` addresses.
pub(crate) fn per_worker(listeners: usize) -> u64 {
    PER_WORKER + PER_LISTENER * listeners.max(1) as u64
}

/// The maximum of the default number of workers. All workers together use at most a quarter of the
/// descriptors; the others are for connections and files.
pub(crate) fn workers_max(descriptors: Option<u64>, listeners: usize) -> usize {
    let max = descriptors.map_or(u64::MAX, |descriptors| {
        (descriptors / 4 / per_worker(listeners)).max(1)
    });
    usize::try_from(max).unwrap_or(usize::MAX)
}

/// The maximum number of connections to the admin address.
pub(crate) fn admin_connections_max(descriptors: Option<u64>) -> usize {
    const MAX: u64 = 64;
    descriptors.map_or(MAX, |descriptors| (descriptors / 16).clamp(4, MAX)) as usize
}

/// What determines the descriptors that the process needs besides connections and files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessUse {
    pub(crate) workers: usize,
    /// Addresses that each worker listens on.
    pub(crate) listeners: usize,
    pub(crate) file_threads: usize,
    /// Descriptors for other purposes.
    pub(crate) other: usize,
}

/// The budget for connections and files: the descriptors that the process does not need itself.
/// Connections over the limit have descriptors too until their 503 response is sent.
pub(crate) fn budget(descriptors: Option<u64>, own: ProcessUse) -> Descriptors {
    let Some(descriptors) = descriptors else {
        return Descriptors::default();
    };
    let (workers, file_threads) = (own.workers.max(1) as u64, own.file_threads as u64);
    let for_workers = per_worker(own.listeners) * workers;
    let needed = PER_PROCESS + for_workers + PER_FILE_THREAD * file_threads + own.other as u64;
    let left = descriptors.saturating_sub(needed);
    let over_limit = workers * (left / 32 / workers).clamp(4, 64);
    Descriptors::new(left.saturating_sub(over_limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_leaves_descriptors_for_files_and_for_the_process() {
        let connections_max = |descriptors, workers, threads, other| {
            let own = ProcessUse {
                workers,
                listeners: 1,
                file_threads: threads,
                other,
            };
            budget(descriptors, own).connections_max()
        };
        assert_eq!(connections_max(None, 2, 16, 0), usize::MAX);
        let many = (1 << 20) - 16 - 12 - 32 - 128;
        assert_eq!(
            connections_max(Some(1 << 20), 2, 16, 0),
            many - 256 - many / 8
        );
        let few = 128 - 16 - 12 - 8 - 8;
        assert_eq!(
            connections_max(Some(128), 2, 4, 0),
            few - few / 16 - few / 8
        );
        assert_eq!(connections_max(Some(128), 2, 4, 10), few - 10 - 4 - 9);
        assert_eq!(
            connections_max(Some(64), 2, 2, 0),
            24 - 2 - 3,
            "more than one"
        );
        assert_eq!(connections_max(Some(3), 64, 1024, 0), 1);
        // With up to 128 cores and an admin address.
        for descriptors in [64, 100, 128, 256] {
            let limit = Some(descriptors);
            let workers = workers_max(limit, 1).min(128);
            let other = admin_connections_max(limit) + 4 + per_worker(1) as usize;
            let connections = connections_max(limit, workers, file_threads(limit, 16), other);
            assert!(
                connections as u64 >= descriptors / 16,
                "{descriptors}: {connections}"
            );
        }
        assert_eq!((workers_max(Some(64), 1), workers_max(Some(3), 9)), (2, 1));
        assert_eq!(workers_max(None, 1), usize::MAX);
    }

    #[test]
    fn few_descriptors_mean_few_threads() {
        assert_eq!(file_threads(None, 16), 16);
        assert_eq!(file_threads(Some(512), 16), 16);
        assert_eq!(file_threads(Some(128), 16), 4);
        assert_eq!(file_threads(Some(1024), 1), 1);
        assert_eq!(file_threads(Some(3), 16), 2);
        assert_eq!(admin_connections_max(Some(64)), 4);
        assert_eq!(admin_connections_max(None), 64);
    }
}
