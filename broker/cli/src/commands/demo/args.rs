//! The arguments of `fdbroker demo` and their help. Must never do anything.

use fdbroker_demo::Memory;

const HELP: &str = "\
Each rank is a process. It registers its buffers, writes their handles - 64-byte records, no fds - to a file,
opens every buffer of every other rank by handle, checks every byte against what its owner wrote, and leaves
its mark in its own 8 bytes at the start of the buffer. At the end each owner checks all marks.

The direct way does the same without a broker: every fd goes from process to process by SCM_RIGHTS and is kept.
It ends when a process has no free fd; `failed_at` is the number of fds of shared memory open on the node
then, and `null` if all fds fitted. In both ways all processes run under RLIMIT_NOFILE = --max-fds.

The broker's ledger counts the fds. Counts in /proc confirm it; all processes are stopped while /proc is read.

Where FDBROKER_SOCKET names a broker and there is no --max-fds, that broker serves, and the peaks count from its start.

Examples:
  fdbroker demo
  fdbroker demo --ranks 8 --buffers 200 --max-fds 256 --json
  fdbroker demo --memory udmabuf            real dma-bufs
  fdbroker demo --memory cuda               memory of an NVIDIA GPU
  fdbroker demo --memory level-zero         memory of a Level Zero driver's device, such as Intel's
  fdbroker demo --hold 60                   keep everything open for a minute, to look at it

Exit status: 0 when no byte was wrong and nothing failed with the broker (the direct way may fail), else 1.";

/// Share memory all-to-all between real processes: under a cap through the broker, then without a
/// broker
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub ranks: u32,
    /// Buffers of each process
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub buffers: u32,
    /// Bytes of each buffer; rounded up to whole pages, or to granules of the device
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    pub size: u64,
    /// Most fds of shared memory on the node; also RLIMIT_NOFILE of each process [default: 256]
    #[arg(long, value_name = "N")]
    pub max_fds: Option<u64>,
    /// Where the buffers are
    #[arg(long, value_enum, default_value_t = Memory::Auto)]
    pub memory: Memory,
    /// With --json: share the direct way, too. Without --json this is always done
    #[arg(long)]
    pub without_broker: bool,
    /// Keep everything open for this time before the end
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub hold: u64,
    /// Longest time for each way
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// One line of JSON instead of the table
    #[arg(short = 'J', long)]
    pub json: bool,
}

/// A process of `demo`
#[derive(Debug, clap::Args)]
pub struct RankArgs {
    /// As its parent wrote it
    pub assignment: String,
}
