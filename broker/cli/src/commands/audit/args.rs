//! The arguments of `fdbroker audit` and their help. Must never do anything.

const HELP: &str = "\
Reads /proc of every process that it may read - all as root, one's own otherwise; what it could not look at is said.
Fds are told by inode (dma-buf, memfd; also of what is evicted) or by kcmp(2) (CUDA, while the broker holds the fd), fds in
flight by their socket, mappings from maps. Ranges of one memfd have one inode: there counts of fds and leases are
compared. A finding holds in three looks; in ten, where the broker is at work meanwhile.

Findings:
  leak           a client has more fds of a memory than open leases of it (an owner may have one more)
  stray          a process that is no client has an fd of a client's memory: inherited by fork, or sent to it
  stray_mapping  a process has memory mapped that it has no lease of
  in_flight      fds lie unread in a socket of a client that is not its connection to the broker
  forgotten      a lease, but its holder has neither fd nor mapping
  orphan         kept after its owner's end, and nobody has a lease of it
  pinned         ended memory, kept by the leases of a process that is stopped, or silent to the broker
  drift          the broker's fds are not those of its ledger

Examples:
  fdbroker audit
  fdbroker audit --pid 4711 --verbose
  fdbroker audit --json

Exit status: 0 nothing found, 4 no such process, 5 findings.";

/// Compare the ledger with /proc: leaks, forgotten leases, orphans, drift
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Only what is about this process
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Notes too: what is worth to know and no fault
    #[arg(short, long)]
    pub verbose: bool,
    /// One line of JSON, findings and notes
    #[arg(short = 'J', long)]
    pub json: bool,
}
