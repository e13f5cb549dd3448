//! Every bound of `audit`, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// Most allocations and most leases read: as many slots as a broker can have at most a few times over. Some 120 bytes each.
pub const MAX_RECORDS: usize = 4 << 20;

/// Most processes looked at: the largest `kernel.pid_max` of a node that is not changed by hand to more (4 Mi) would
/// take minutes; a node with more than this is not one of ranks.
pub const MAX_PROCESSES: usize = 256 << 10;

/// Most fds of one process: `fs.nr_open`, which no RLIMIT_NOFILE can exceed unless it is raised too.
pub const MAX_FDS: usize = 1 << 20;

/// Most mappings of one process: `vm.max_map_count` is 65,530, and 1,048,576 in some distributions.
pub const MAX_MAPPINGS: usize = 2 << 20;

/// Most bytes read of one file of /proc that holds lines: the longest is fdinfo of a dma-buf with a long name.
pub const MAX_FILE_BYTES: u64 = 64 << 10;

/// Looks in which a finding must hold. The ledger and /proc cannot be read at one moment; what is on its way in one
/// look has arrived in the next.
pub const LOOKS: usize = 3;

/// Looks in which a finding must hold when the broker is at work while it is looked at: what a client was granted and has
/// given back between two ledgers is in neither, nor is which fd the broker had of what meanwhile. That is so in at most
/// 4 of 27 looks (not yet, there, and not any more), hence in all of these for one of two hundred million such clients.
pub const LOOKS_AT_WORK: usize = 10;

/// Between two looks: far longer than a message takes, and than an import.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(150);

/// Most findings and most notes of one report: more than anybody reads; the rest is counted.
pub const MAX_REPORTED: usize = 1000;

/// Most numbers (fds, leases) listed in one finding; the rest is counted.
pub const MAX_LISTED: usize = 8;

/// Most ancestors of a process asked for: chains of launchers and shells are some 10 long.
pub const MAX_ANCESTORS: usize = 64;

/// Processes from which on a terminal shows how far the look has come: fewer are looked at in well under a second.
pub const PROGRESS_FROM: usize = 500;
