//! Checks the namespaces of this process: a broker of the node may be out of reach. Must never
//! enter another namespace.

use super::check::{Area, Check};
use std::os::unix::fs::MetadataExt;

const AREA: Area = Area("namespaces");

/// Inodes of the first namespaces (include/linux/proc_ns.h).
const FIRST_USER: u64 = 0xefff_fffd;
const FIRST_PID: u64 = 0xefff_fffc;

pub fn checks() -> Vec<Check> {
    let inode =
        |name: &str| std::fs::metadata(format!("/proc/self/ns/{name}")).ok().map(|it| it.ino());
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let found = [inode("pid").map(pids), inode("user").map(|inode| users(inode, &map))];
    found.into_iter().flatten().collect()
}

fn pids(inode: u64) -> Check {
    let name = "pid namespace";
    match inode {
        FIRST_PID => AREA.ok(name, "the node's"),
        // A broker of the node sees all pids of the node; a broker in this namespace sees pid 0 for
        // processes outside.
        _ => AREA.ok(
            name,
            "one of its own: handles work across it; a broker started in here shows pid 0 for clients outside",
        ),
    }
}

/// Checks `map`, the text of /proc/self/uid_map: lines of inside, outside, count.
fn users(inode: u64, map: &str) -> Check {
    let name = "user namespace";
    let mapped: u64 =
        map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    match inode {
        FIRST_USER => AREA.ok(name, "the node's"),
        _ if mapped == 0 => AREA.fail(
            name,
            "one of its own without a uid map: everybody is the overflow uid, whom no broker serves",
            "write a uid map for it (newuidmap, unshare --map-root-user), or start it in the node's user namespace",
        ),
        _ => AREA.ok(
            name,
            format!("one of its own with {mapped} uids: a broker of the node goes by the uid outside"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn users_when_nobody_is_mapped_then_fail() {
        assert_eq!(users(FIRST_USER, "0 0 4294967295").verdict, Verdict::Ok);
        assert_eq!(users(4_026_532_000, "         0       1000          1\n").verdict, Verdict::Ok);
        assert_eq!(users(4_026_532_000, "").verdict, Verdict::Fail);
    }

    #[test]
    fn pids_when_of_its_own_then_said() {
        assert_eq!(pids(FIRST_PID).found, "the node's");
        assert!(pids(4_026_532_001).found.contains("pid 0"));
    }
}
