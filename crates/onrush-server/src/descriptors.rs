//! The limit on open descriptors, and how many connections that allows. Must not know what else the
//! server does with them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Fewer than this are worth a word: a server of this kind is made for thousands.
const FEW: u64 = 4096;

/// A thread for file work has this many open at a time: a file, and a folder on the way to it.
const OF_FILE_THREAD: u64 = 2;
/// A worker's: its ring or epoll, what wakes it, two for listening, and some that come and go.
pub(crate) const OF_WORKER: u64 = 8;
/// Of the process: its streams, signals, the folder served, files that are being sent.
const OF_PROCESS: u64 = 32;

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

/// How many connections leave descriptors enough to serve them all: accepting takes the last one,
/// if it may, and then no file can be opened for those who are in. `aside` are taken by others.
pub(crate) fn connections_max(
    descriptors: Option<u64>,
    workers: usize,
    file_threads: usize,
    aside: usize,
) -> usize {
    let Some(descriptors) = descriptors else {
        return usize::MAX;
    };
    let (workers, file_threads) = (workers as u64, file_threads as u64);
    let cached_files = cached_files_max(Some(descriptors)) as u64;
    let needed = OF_PROCESS + OF_WORKER * workers + OF_FILE_THREAD * file_threads + cached_files;
    let left = descriptors.saturating_sub(needed.max(descriptors / 8) + aside as u64);
    usize::try_from(left.max(1)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_their_requests() {
        assert_eq!(connections_max(None, 2, 16, 0), usize::MAX);
        assert_eq!(connections_max(Some(1 << 20), 2, 16, 0), 7 << 17);
        assert_eq!(
            connections_max(Some(1024), 2, 16, 0),
            1024 - 32 - 16 - 32 - 64
        );
        assert_eq!(connections_max(Some(128), 2, 16, 0), 128 - 32 - 16 - 32 - 8);
        assert_eq!(connections_max(Some(1 << 20), 2, 16, 72), (7 << 17) - 72);
        assert_eq!(connections_max(Some(64), 2, 16, 0), 1, "one can be served");
        assert_eq!(connections_max(Some(3), 64, 1024, 0), 1);
    }
}
