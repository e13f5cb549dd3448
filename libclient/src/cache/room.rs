//! How much the cache may have mapped, whatever its settings: the process needs mappings and
//! addresses for itself, too. Must never be asked on the way of a hit.

use crate::limits::MAX_MAP_COUNT;
use crate::map::page_size;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Three quarters of what the process may have. With all of it mapped, malloc(3) of the process
/// fails, too.
#[derive(Debug)]
pub(super) struct Room {
    maps: usize,
    bytes: u64,
    page: u64,
}

impl Room {
    /// What the system and the limits of the process allow now.
    pub fn of_process() -> Self {
        let maps = number_in("/proc/sys/vm/max_map_count").unwrap_or(MAX_MAP_COUNT);
        let page = page_size() as u64;
        let limit = getrlimit(Resource::RLIMIT_AS).map_or(RLIM_INFINITY, |(soft, _)| soft);
        let bytes = match limit {
            RLIM_INFINITY => u64::MAX,
            limit => limit.saturating_sub(number_in("/proc/self/statm").unwrap_or(0) * page),
        };
        let maps = usize::try_from(maps).unwrap_or(usize::MAX);
        Room { maps: maps / 4 * 3, bytes: bytes / 4 * 3, page }
    }

    /// Whether so many mappings, or so many bytes of addresses, are too much.
    pub fn is_passed_by(&self, maps: usize, bytes: u64) -> bool {
        maps > self.maps || bytes > self.bytes
    }

    /// The addresses that a mapping of so many bytes takes.
    pub fn addresses(&self, len: usize) -> u64 {
        (len as u64).next_multiple_of(self.page)
    }
}

/// The first number in a file of /proc.
fn number_in(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.split_ascii_whitespace().next()?.parse().ok()
}
