//! Whether memory that is to be allocated at once is there: pages of a memfd count for no process,
//! so when there are too many the system ends others. Must never refuse where nothing is known, nor
//! reserve anything.

use crate::error::Error;
use crate::limits::MEMORY_CHECK_BYTES;
use fdbroker_protocol::ErrorCode;
use std::fmt::Display;
use std::fs::read_to_string;
use std::path::Path;

/// Looks only for what is large.
///
/// # Errors
/// INTERNAL, as when the system refuses the memory: how much was asked for, and how much is there.
pub(super) fn check(bytes: usize) -> Result<(), Error> {
    if bytes < MEMORY_CHECK_BYTES {
        return Ok(());
    }
    let machine = read_to_string("/proc/meminfo").ok().as_deref().and_then(of_meminfo);
    fits(bytes, machine, "this machine (MemAvailable of /proc/meminfo)")?;
    let cgroup = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(cgroup) = cgroup.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Ok(());
    };
    for cgroup in Path::new(cgroup).ancestors() {
        let name = format_args!("cgroup /{} (memory.max)", cgroup.display());
        fits(bytes, of_cgroup(&Path::new("/sys/fs/cgroup").join(cgroup)), name)?;
    }
    Ok(())
}

fn fits(bytes: usize, left: Option<u64>, whose: impl Display) -> Result<(), Error> {
    match left {
        Some(left) if bytes as u64 > left => {
            let context = format!("memory of {bytes} bytes for objects: {whose} has {left} left");
            Err(Error::new(ErrorCode::Internal, context).because(
                "there is not so much memory, so nothing was allocated; make less at a time, or end what has it",
            ))
        }
        _ => Ok(()),
    }
}

/// What can be had without swapping, from meminfo(5), which counts in units of 1024 bytes.
fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a cgroup (v2) has left of its limit: what files have cached goes when memory is short.
fn of_cgroup(folder: &Path) -> Option<u64> {
    let read = |name| read_to_string(folder.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    let (max, current) = (number("memory.max")?, number("memory.current")?);
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().filter_map(|line| match line.split_once(' ')? {
        ("inactive_file" | "active_file", bytes) => bytes.parse::<u64>().ok(),
        _ => None,
    });
    Some(max.saturating_sub(current.saturating_sub(cached.sum())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_when_more_than_is_left_then_internal_and_says_both() {
        for left in [None, Some(5), Some(6)] {
            assert_eq!(fits(5, left, "it"), Ok(()));
        }
        let error = fits(5, Some(4), "it").unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert_eq!(error.context, "memory of 5 bytes for objects: it has 4 left");
    }

    #[test]
    fn of_meminfo_when_it_says_how_much_then_in_bytes_else_nothing() {
        let text = "MemTotal: 99 kB\nMemFree:  1 kB\nMemAvailable:      65536 kB\n";
        assert_eq!(of_meminfo(text), Some(64 << 20));
        for text in ["", "MemAvailable: x kB", "MemAvailable: 1", "MemFree: 1 kB"] {
            assert_eq!(of_meminfo(text), None, "{text}");
        }
    }

    #[test]
    fn of_cgroup_when_limited_then_the_cached_counts_as_left() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name, text| std::fs::write(folder.path().join(name), text).unwrap();
        let left = || of_cgroup(folder.path());
        assert_eq!(left(), None);
        write("memory.current", "700\n");
        write("memory.max", "max\n");
        assert_eq!(left(), None);
        write("memory.max", "1000\n");
        assert_eq!(left(), Some(300));
        write("memory.stat", "anon 5\nfile 400\ninactive_file 80\nactive_file 20\n");
        assert_eq!(left(), Some(400));
        write("memory.current", "1200\n");
        assert_eq!(left(), Some(0));
        write("memory.current", "10\n");
        assert_eq!(left(), Some(1000));
    }
}
