//! Every bound of `audit`, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// Most allocations, and most leases, that are read: a few times the slots of the largest broker.
/// Some 120 bytes each.
pub const MAX_RECORDS: usize = 4 << 20;

/// Most processes that are read. The largest default of `kernel.pid_max` (4 Mi) would take minutes;
/// no node of ranks has so many.
pub const MAX_PROCESSES: usize = 256 << 10;

/// Most fds of one process: `fs.nr_open`, which no RLIMIT_NOFILE can exceed unless it is raised
/// too.
pub const MAX_FDS: usize = 1 << 20;

/// Most mappings of one process: `vm.max_map_count` is 65,530, and 1,048,576 in some distributions.
pub const MAX_MAPPINGS: usize = 2 << 20;

/// Most bytes read of one file of /proc that holds lines: the longest is fdinfo of a dma-buf with a
/// long name.
pub const MAX_FILE_BYTES: u64 = 64 << 10;

/// Looks in which a finding must hold. The ledger and /proc cannot be read at one moment; what is
/// on its way in one look has arrived in the next.
pub const LOOKS: usize = 3;

/// Looks in which a finding must hold if the broker is busy meanwhile. A lease that a client gets
/// and gives back between the two ledgers of a look is in neither of them, and the same is true for
/// fds of the broker. That happens in at most 4 of 27 looks (before, during, after), and so in all
/// of these looks for one of two hundred million such clients.
pub const LOOKS_AT_WORK: usize = 10;

/// Time between two looks: far longer than a message or an import takes.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(150);

/// Most findings and most notes of one report: more than anybody reads; the rest is counted.
pub const MAX_REPORTED: usize = 1000;

/// Most numbers (fds, leases) that the text of one finding lists; the rest is counted. JSON has all
/// fds.
pub const MAX_LISTED: usize = 8;

/// A live client may have leases of ended memory for so long: it is told at once, and gives back
/// what it does not use.
pub const ENDED_LEASE_MS: u64 = 60_000;

/// Most fd tables of one process: a thread makes one for itself with unshare(2), and few programs
/// do.
pub const MAX_TABLES: usize = 64;

/// Most threads of one process: `kernel.threads-max` of a node with 256 GiB is some 2 Mi, and no
/// process has so many.
pub const MAX_THREADS: usize = 1 << 18;

/// Most bytes read of the kernel's list of dma-bufs: some 100 each.
pub const MAX_BUFFER_LIST_BYTES: u64 = 64 << 20;

/// Most bytes read of the fdinfo of a ring: a line for each of its 2^15 files.
pub const MAX_RING_BYTES: u64 = 4 << 20;

/// Most ancestors of a process: chains of launchers and shells have some 10.
pub const MAX_ANCESTORS: usize = 64;

/// From this number of processes on, a terminal shows the progress: fewer take less than a second.
pub const PROGRESS_FROM: usize = 500;
