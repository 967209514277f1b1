//! Limits each of several threads to an equal share of CPU, by control groups (cgroups(7)). So
//! eight workers behave as eight on a machine with fewer cores.
//!
//! In version 1 a group of the `cpu` controller contains single threads. In version 2 the process
//! moves into a subtree whose groups are threaded. Both need write access, which containers rarely
//! have.

use std::{
    fs,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Begins the names of these groups. The id of the process follows.
const PREFIX: &str = "onrush-experiment-";

/// Ends the name of the group that contains this process.
const OWN: &str = ".own";

/// The CPU that one thread may use, in microseconds of each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    quota_us: u64,
    period_us: u64,
}

impl Quota {
    /// The quota for a share of a core. The kernel accepts quotas of at least 1 ms and periods of
    /// at most 1 s.
    pub(crate) fn of_share(share: f64) -> Quota {
        const QUOTA_MIN_US: f64 = 1_000.0;
        let period_us = (QUOTA_MIN_US / share).clamp(50_000.0, 1_000_000.0);
        Quota {
            quota_us: (period_us * share).max(QUOTA_MIN_US).round() as u64,
            period_us: period_us.round() as u64,
        }
    }

    /// Seconds of CPU per second.
    pub(crate) fn share(self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// One group for each thread. Dropping this value removes the groups; the threads must have ended.
#[derive(Debug)]
pub(crate) struct Groups {
    base: PathBuf,
    version: Version,
    count: usize,
}

impl Groups {
    /// Limits each of `threads`, which belong to `process`, to `quota`.
    ///
    /// # Errors
    /// There is no `cpu` controller, or this process may not write to it.
    pub(crate) fn new(process: u32, threads: &[u32], quota: Quota) -> Outcome<Groups> {
        let (root, version) = controller()?;
        sweep(&root);
        let base = root.join(format!("{PREFIX}{}", process::id()));
        make(&base)?;
        let mut groups = Groups {
            base,
            version,
            count: 0,
        };
        if version == Version::Two {
            let base = &groups.base;
            write(&root.join("cgroup.subtree_control"), "+cpu")?;
            write(&base.join("cgroup.procs"), &process.to_string())?;
        }
        set_greatest_weight(&groups.base, version)?;
        for (at, thread) in threads.iter().enumerate() {
            let group = groups.group(at);
            make(&group)?;
            groups.count += 1;
            if version == Version::Two {
                write(&group.join("cgroup.type"), "threaded")?;
                write(&groups.base.join("cgroup.subtree_control"), "+cpu")?;
            }
            groups.limit(at, quota)?;
            let members = match version {
                Version::One => "tasks",
                Version::Two => "cgroup.threads",
            };
            write(&group.join(members), &thread.to_string())?;
        }
        Ok(groups)
    }

    fn limit(&self, at: usize, quota: Quota) -> Outcome {
        let (quota_us, period_us) = (quota.quota_us, quota.period_us);
        let group = self.group(at);
        match self.version {
            Version::One => {
                write(&group.join("cpu.cfs_period_us"), &period_us.to_string())?;
                write(&group.join("cpu.cfs_quota_us"), &quota_us.to_string())
            }
            Version::Two => write(&group.join("cpu.max"), &format!("{quota_us} {period_us}")),
        }
    }

    fn group(&self, at: usize) -> PathBuf {
        self.base.join(format!("worker-{at}"))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let mut all: Vec<PathBuf> = (0..self.count).map(|at| self.group(at)).collect();
        all.push(self.base.clone());
        remove(all);
    }
}

/// Removes groups, inner ones first. Waits up to 5 s: killed threads leave their groups with a
/// delay.
fn remove(mut groups: Vec<PathBuf>) {
    let end = Instant::now() + Duration::from_secs(5);
    while !groups.is_empty() && Instant::now() < end {
        groups.retain(|group| fs::remove_dir(group).is_err() && group.exists());
        thread::sleep(Duration::from_millis(2));
    }
}

/// Gives this process, and the processes that it starts, precedence over all others on the machine
/// until this value is dropped. Otherwise the kernel divides the cores equally among sessions.
#[derive(Debug)]
pub(crate) struct Precedence {
    root: PathBuf,
    own: PathBuf,
}

impl Precedence {
    /// Returns `None`, and changes nothing, if this process may not write to control groups.
    pub(crate) fn new() -> Option<Precedence> {
        let (root, version) = controller().ok()?;
        sweep(&root);
        let own = root.join(format!("{PREFIX}{}{OWN}", process::id()));
        make(&own).ok()?;
        let precedence = Precedence { root, own };
        set_greatest_weight(&precedence.own, version).ok()?;
        let id = process::id().to_string();
        write(&precedence.own.join("cgroup.procs"), &id).ok()?;
        Some(precedence)
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        let _ = write(&self.root.join("cgroup.procs"), &process::id().to_string());
        remove(vec![self.own.clone()]);
    }
}

/// Gives a group the greatest weight that the kernel accepts.
fn set_greatest_weight(group: &Path, version: Version) -> Outcome {
    match version {
        Version::One => write(&group.join("cpu.shares"), "262144"),
        Version::Two => write(&group.join("cpu.weight"), "10000"),
    }
}

/// The reason why quotas are not available here, if so. Tries it, and removes the group again.
pub(crate) fn unavailable() -> Option<String> {
    let mut sleeper = match process::Command::new("sleep").arg("10").spawn() {
        Ok(sleeper) => sleeper,
        Err(error) => return Some(format!("cannot run `sleep`: {error}")),
    };
    let id = sleeper.id();
    let groups = Groups::new(id, &[id], Quota::of_share(0.1));
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    groups.err()
}

/// The root of the hierarchy with the `cpu` controller, and its version.
fn controller() -> Outcome<(PathBuf, Version)> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    find(&mounts, |root| {
        let all = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        all.split_whitespace().any(|name| name == "cpu")
    })
    .ok_or_else(|| "no cpu controller is mounted".to_owned())
}

/// The same from `mounts`, the text of `/proc/self/mounts`.
fn find(mounts: &str, v2_has_cpu: impl Fn(&Path) -> bool) -> Option<(PathBuf, Version)> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let place = PathBuf::from(place);
        match kind {
            "cgroup" if options.split(',').any(|o| o == "cpu") => Some((place, Version::One)),
            "cgroup2" if v2_has_cpu(&place) => Some((place, Version::Two)),
            _ => None,
        }
    })
}

/// Removes the groups of processes that no longer exist: a killed run leaves its groups.
fn sweep(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_gone = |id: &str| {
            let id = id.strip_suffix(OWN).unwrap_or(id);
            !Path::new("/proc").join(id).exists()
        };
        if owner.is_some_and(is_gone) {
            let inner = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            for group in inner.filter(|inner| inner.path().is_dir()) {
                let _ = fs::remove_dir(group.path());
            }
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn make(folder: &Path) -> Outcome {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(format!("{}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> Outcome {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_becomes_a_quota_that_the_kernel_accepts() {
        let tenth = Quota::of_share(0.1);
        assert_eq!((tenth.quota_us, tenth.period_us), (5_000, 50_000));
        let small = Quota::of_share(0.005);
        assert_eq!((small.quota_us, small.period_us), (1_000, 200_000));
        assert_eq!(Quota::of_share(0.0001).period_us, 1_000_000);
        assert_eq!(Quota::of_share(0.25).share(), 0.25);
    }

    #[test]
    fn the_controller_is_found_in_either_version() {
        let one = "cgroup /a/cpuacct cgroup rw,cpuacct 0 0\ncgroup /a/cpu cgroup rw,cpu 0 0\n";
        let found = find(one, |_| false);
        assert_eq!(found, Some((PathBuf::from("/a/cpu"), Version::One)));
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = find(two, |_| true);
        assert_eq!(found, Some(("/sys/fs/cgroup".into(), Version::Two)));
        assert_eq!(find(two, |_| false), None);
        assert_eq!(find("proc /proc proc rw 0 0\n", |_| true), None);
    }

    #[test]
    fn groups_are_removed_with_their_owner() {
        if let Some(reason) = unavailable() {
            println!("skipped: {reason}");
        }
        let Ok((root, _)) = controller() else { return };
        let precedence = Precedence::new();
        let own = format!("{PREFIX}{}", process::id());
        if precedence.is_some() {
            assert!(root.join(format!("{own}{OWN}")).exists());
        }
        drop(precedence);
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let ours = |name: &str| name.starts_with(&own);
        let left = entries.filter(|entry| entry.file_name().to_str().is_some_and(ours));
        assert_eq!(left.count(), 0);
    }
}
