//! The memory that the process may use, and default sizes that depend on it. It is the minimum of
//! the machine's memory and the limits of the process's cgroups.
//!
//! `cgroups(7)`, `proc_pid_cgroup(5)` and `proc_pid_mountinfo(5)` describe the files. A limit of
//! version 2 is in `memory.max`, one of version 1 in `memory.limit_in_bytes`. It applies to all
//! descendant groups, so the limits of all visible ancestors count.

use std::path::{Component, Path, PathBuf};

/// Default sizes are at most the memory divided by these numbers: a quarter for received data and
/// small objects together, and a sixteenth for upload buffers. The remaining memory is for
/// connections, stacks, and the kernel's socket buffers and page cache.
pub(crate) const RECEIVE_DIVISOR: u64 = 5;
pub(crate) const CACHE_DIVISOR: u64 = 20;
pub(crate) const UPLOAD_DIVISOR: u64 = 16;

/// A memory limit that reduced defaults, and the resulting sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReducedDefaults {
    pub(crate) limit_bytes: u64,
    pub(crate) receive_bytes: u64,
    pub(crate) cache_bytes: u64,
}

impl ReducedDefaults {
    /// Logs the limit and the sizes.
    pub(crate) fn log(self) {
        tracing::info!(
            memory_bytes = self.limit_bytes,
            receive_memory_bytes = self.receive_bytes,
            cache_bytes = self.cache_bytes,
            "smaller defaults, because the memory is limited"
        );
    }
}

/// The bytes of memory that this process may use; `None` if unknown. `root` is `/`, or a copy for
/// tests.
pub(crate) fn limit_bytes(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let group_limits = mounts.lines().filter_map(Mount::parse).flat_map(|mount| {
        let group = groups.lines().find_map(|line| mount.process_group(line));
        group.map_or(Vec::new(), |group| mount.limits(root, group))
    });
    group_limits
        .chain(total_memory(&read("proc/meminfo")))
        .min()
}

/// The memory divided by `divisor`, but at most `default_bytes`.
pub(crate) fn share(limit_bytes: Option<u64>, divisor: u64, default_bytes: u64) -> u64 {
    limit_bytes.map_or(default_bytes, |bytes| (bytes / divisor).min(default_bytes))
}

/// `MemTotal` of `proc_meminfo(5)`.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// A mount of memory cgroups.
struct Mount<'m> {
    /// The group at the root of the mount, and the mount point.
    group: &'m str,
    mount_point: &'m str,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Mount<'_> {
    /// From a line of `mountinfo`: `36 35 98:0 ROOT POINT OPTIONS … - TYPE SOURCE OPTIONS`.
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (group, mount_point) = (mount.next()?, mount.next()?);
        let mut file_system = file_system.split(' ');
        let version = match file_system.next()? {
            "cgroup2" => Version::Two,
            "cgroup"
                if file_system
                    .nth(1)?
                    .split(',')
                    .any(|option| option == "memory") =>
            {
                Version::One
            }
            _ => return None,
        };
        Some(Mount {
            group,
            mount_point,
            version,
        })
    }

    /// The process's group, from a line `ID:CONTROLLERS:PATH` of `/proc/self/cgroup`. Version 2 has
    /// no controllers.
    fn process_group<'l>(&self, line: &'l str) -> Option<&'l str> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_memory = match self.version {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => controllers.is_empty(),
        };
        is_memory.then_some(path)
    }

    /// The limits of a group and of its visible ancestors.
    fn limits(&self, root: &Path, group: &str) -> Vec<u64> {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        // A group outside of the mount is not visible. The root of the mount is its ancestor.
        let is_inside = |path: &&Path| path.components().all(|part| part != Component::ParentDir);
        let below = Path::new(group).strip_prefix(self.group).ok();
        let below = below.filter(is_inside).unwrap_or(Path::new(""));
        let top = root.join(self.mount_point.trim_start_matches('/'));
        let read = |folder: PathBuf| std::fs::read_to_string(folder.join(file)).ok();
        let folders = below.ancestors().map(|path| top.join(path));
        // "max" is not a number and means no limit. In version 1, a huge number means no limit.
        let limits = folders.filter_map(read);
        limits.filter_map(|text| text.trim().parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const MIB: u64 = 1 << 20;
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    /// A root folder with these files, removed on drop.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let name = format!("onrush-memory-{}-{name}", std::process::id());
            let root = Root(std::env::temp_dir().join(name));
            root.file("proc/meminfo", "MemFree: 1 kB\nMemTotal:     8388608 kB\n");
            for (path, text) in files {
                root.file(path, text);
            }
            root
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn mib(&self) -> Option<u64> {
            limit_bytes(&self.0).map(|bytes| bytes / MIB)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn without_groups_the_machine_has_the_limit() {
        assert_eq!(Root::new("none", &[]).mib(), Some(8192));
        assert_eq!(limit_bytes(Path::new("/does/not/exist")), None);
    }

    #[test]
    fn the_least_limit_of_all_ancestors_counts() {
        let root = Root::new(
            "v2",
            &[
                ("proc/self/mountinfo", V2),
                ("proc/self/cgroup", "0::/a.slice/b.service\n"),
                ("sys/fs/cgroup/a.slice/memory.max", "100663296\n"),
                ("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n"),
            ],
        );
        assert_eq!(root.mib(), Some(96));
        root.file("sys/fs/cgroup/a.slice/b.service/memory.max", "67108864\n");
        assert_eq!(root.mib(), Some(64));
        root.file("sys/fs/cgroup/a.slice/memory.max", "1048576\n");
        assert_eq!(root.mib(), Some(1));
    }

    /// In a container, the group is at the root of the mount, or its path is outside of the
    /// namespace.
    #[test]
    fn in_a_container_the_limit_at_the_root_of_the_mount_applies() {
        for path in ["/", "/docker/0123", "/../other"] {
            let root = Root::new(
                "container",
                &[
                    ("proc/self/mountinfo", V2),
                    ("proc/self/cgroup", &format!("0::{path}\n")),
                    ("sys/fs/cgroup/memory.max", "134217728\n"),
                ],
            );
            assert_eq!(root.mib(), Some(128), "{path}");
        }
    }

    #[test]
    fn limits_of_cgroup_version_one_are_read() {
        let mounts = "40 33 0:30 /docker/0123 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            41 33 0:31 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n";
        let root = Root::new(
            "v1",
            &[
                ("proc/self/mountinfo", mounts),
                (
                    "proc/self/cgroup",
                    "4:memory:/docker/0123/x\n1:cpu:/\n0::/\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                (
                    "sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                    "268435456\n",
                ),
            ],
        );
        assert_eq!(root.mib(), Some(256));
        fs::remove_dir_all(root.0.join("sys/fs/cgroup/memory/x")).unwrap();
        assert_eq!(root.mib(), Some(8192), "only the machine's memory limits");
    }

    #[test]
    fn a_share_is_never_more_than_the_default() {
        assert_eq!(share(None, 5, 256 * MIB), 256 * MIB);
        assert_eq!(share(Some(8192 * MIB), 5, 256 * MIB), 256 * MIB);
        assert_eq!(share(Some(100 * MIB), 5, 256 * MIB), 20 * MIB);
    }
}
