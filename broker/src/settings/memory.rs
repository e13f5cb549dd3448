//! How much memory this process may have. Must never fail: where nothing is said, nothing is known.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes of the machine's memory, or of the smallest `memory.max` of this process's cgroups.
pub(crate) fn of_this_process() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().as_deref().and_then(of_meminfo);
    let cgroup = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    let most = cgroup.and_then(|path| of_cgroup(Path::new("/sys/fs/cgroup"), Path::new(path)));
    machine.into_iter().chain(most).min()
}

/// From meminfo(5), which counts in units of 1024 bytes.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit of a cgroup and those above it, in bytes.
fn of_cgroup(mount: &Path, path: &Path) -> Option<u64> {
    let limit = |path: &Path| read_to_string(mount.join(path).join("memory.max")).ok();
    let limits = path.ancestors().filter_map(|path| limit(path)?.trim().parse().ok());
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_meminfo_when_it_says_how_much_then_in_bytes_else_nothing() {
        let text = "MemTotal:       65536 kB\nMemFree:  1 kB\n";
        assert_eq!(of_meminfo(text), Some(64 << 20));
        for text in ["", "MemTotal: x kB", "MemTotal: 1", "MemFree: 1 kB"] {
            assert_eq!(of_meminfo(text), None, "{text}");
        }
        assert!(of_this_process().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn of_cgroup_when_one_above_has_less_then_that() {
        let mount = tempfile::tempdir().expect("a directory");
        let below = mount.path().join("a/b");
        std::fs::create_dir_all(&below).expect("ours");
        let of = |path: &str| of_cgroup(mount.path(), Path::new(path));
        assert_eq!(of("a/b"), None);
        for (path, limit) in [(&below, "4096\n"), (&mount.path().join("a"), "max\n")] {
            std::fs::write(path.join("memory.max"), limit).expect("ours");
        }
        assert_eq!((of("a/b"), of("a"), of("a/c")), (Some(4096), None, None));
        std::fs::write(mount.path().join("memory.max"), "1024\n").expect("ours");
        assert_eq!((of("a/b"), of("a")), (Some(1024), Some(1024)));
    }
}
