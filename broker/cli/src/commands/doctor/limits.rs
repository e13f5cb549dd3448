//! Checks limits of fds, mappings and memory. Must never judge what the broker's caps cover.

use super::check::{Area, Check, number_in};
use crate::output::commas;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

const AREA: Area = Area("limits");

/// The default soft limit of a shell. Programs with less run out of fds for libraries and sockets
/// before they share memory.
const FEW_FDS: u64 = 1024;

/// A system with this percentage of its files open will soon run out.
const NEARLY_ALL: u64 = 90;

/// Default limit of mappings of a process (include/linux/mm.h, `DEFAULT_MAX_MAP_COUNT`).
const DEFAULT_MAPPINGS: u64 = 65_530;

pub fn checks() -> Vec<Check> {
    let open_files = getrlimit(Resource::RLIMIT_NOFILE).ok();
    let files = std::fs::read_to_string("/proc/sys/fs/file-nr").ok();
    let mappings = number_in("/proc/sys/vm/max_map_count");
    let own = open_files.map(|(soft, hard)| own_fds(soft, hard));
    let node = files.as_deref().and_then(node_files);
    own.into_iter().chain(node).chain(mappings.map(own_mappings)).collect()
}

fn own_fds(soft: u64, hard: u64) -> Check {
    let name = "open files of a process";
    let shown =
        |limit: u64| if limit == RLIM_INFINITY { "unlimited".into() } else { commas(limit) };
    let found = format!("soft {}, hard {}", shown(soft), shown(hard));
    match soft {
        0..FEW_FDS if hard > soft => {
            AREA.fail(name, found, format!("ulimit -n {}", hard.min(FEW_FDS * 4)))
        }
        0..FEW_FDS => AREA.fail(
            name,
            found,
            "raise the hard limit: LimitNOFILE= of the unit, or nofile in /etc/security/limits.conf",
        ),
        _ => AREA.ok(name, found),
    }
}

/// Checks /proc/sys/fs/file-nr: allocated, free, most.
fn node_files(text: &str) -> Option<Check> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let (used, _, most) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    let name = "open files of the node";
    let is_near = u128::from(used) * 100 >= u128::from(most) * u128::from(NEARLY_ALL);
    Some(match is_near {
        true => AREA.fail(
            name,
            format!("{} of {}", commas(used), commas(most)),
            "find who has them (`lsof | awk '{print $2}' | sort | uniq -c | sort -n | tail`), or sysctl fs.file-max=N",
        ),
        // 2^63 - 1, the default of a 64-bit kernel, means no limit.
        false if most > u64::MAX / 4 => AREA.ok(name, format!("{}, no limit", commas(used))),
        false => AREA.ok(name, format!("{} of {}", commas(used), commas(most))),
    })
}

fn own_mappings(most: u64) -> Check {
    let name = "mappings of a process";
    let found = format!("{} (vm.max_map_count)", commas(most));
    match most {
        0..DEFAULT_MAPPINGS => AREA.warn(
            name,
            found,
            format!("each imported buffer is a mapping at least: sysctl vm.max_map_count={DEFAULT_MAPPINGS}"),
        ),
        _ => AREA.ok(name, found),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn own_fds_when_few_then_the_remedy_is_one_that_works() {
        let verdict = |soft, hard| own_fds(soft, hard).verdict;
        assert_eq!(verdict(1024, 4096), Verdict::Ok);
        assert_eq!(verdict(256, 256), Verdict::Fail);
        assert_eq!(own_fds(256, 2000).remedy.as_deref(), Some("ulimit -n 2000"));
        assert_eq!(own_fds(RLIM_INFINITY, RLIM_INFINITY).found, "soft unlimited, hard unlimited");
    }

    #[test]
    fn node_files_when_nearly_all_are_open_then_fail() {
        let verdict = |text| node_files(text).map(|check| check.verdict);
        assert_eq!(verdict("100\t0\t1000\n"), Some(Verdict::Ok));
        assert_eq!(verdict("900\t0\t1000\n"), Some(Verdict::Fail));
        assert_eq!(
            node_files("864\t0\t9223372036854775807\n").map(|it| it.found),
            Some("864, no limit".into())
        );
        assert_eq!(node_files("what"), None);
    }

    #[test]
    fn own_mappings_when_fewer_than_by_default_then_warn() {
        assert_eq!(own_mappings(65_530).verdict, Verdict::Ok);
        assert_eq!(own_mappings(1000).verdict, Verdict::Warn);
    }
}
