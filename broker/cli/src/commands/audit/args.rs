//! The arguments of `fdbroker audit` and their help. Must never do anything.

use std::path::PathBuf;

const HELP: &str = "\
Reads /proc of all processes as root, else of the user's own processes. The report says what could not be looked at.
An fd is matched with an allocation by its inode (dma-bufs and memfds, evicted ones too) or by kcmp(2) (CUDA memory, while the
broker holds an fd of it). Fds in flight are found by their socket, mappings in /proc/PID/maps. All ranges of one memfd have
the same inode: for them the number of fds is compared with the number of leases. A finding is reported only if it holds in
three looks in a row, or in ten looks if the broker is busy meanwhile.

Findings:
  leak           a client has more fds of an allocation than open leases (its owner may have one more)
  stray          a process that is not a client has an fd of a client's memory: inherited by fork, or received
  stray_mapping  a process has mapped memory without a lease
  in_flight      fds lie unread in a socket, other than a connection to the broker: of a client, or of another process if a
                 client has sent them, or nobody has the other end and the process is of a client's user and job
  forgotten      a client has a lease, but neither an fd nor a mapping
  orphan         memory that was kept after the end of its owner, and that nobody has a lease of; named
                 objects, which need no owner, are none (`fdbroker objects --filter 'LEASES == 0'` lists those that nobody reads)
  pinned         ended memory that a process still leases: for more than a minute, or it is stopped or does not answer the broker
  ended_copy     a process has an fd or a mapping of memory that has ended, and no lease
  ended_unheld   a dma-buf that has ended and that no process has: an import, a ring or a message keeps it
  thread_table   a thread has more fds in an fd table of its own (unshare(CLONE_FILES)) than leases explain
  zombie_leader  the first thread of a process has ended, others live on: /proc/PID/fd shows nothing
  io_uring       files of shared memory are registered with a ring: they stay open when their fds are closed
  stopped_owner  an owner is stopped, or its cgroup frozen, and cannot give evicted memory again
  drift          the broker's fds do not match its ledger; only where all of the ledger is seen

What has ended is recognised as long as the broker remembers it: 65,536 files, 8,192 of each user, until a crash. Not CUDA memory:
its inodes are all equal. The kernel's list of dma-bufs (/sys/kernel/debug/dma_buf/bufinfo) is read where it can be: as root, with
debugfs. Of fds in flight and of files of a ring the kernel does not say which memory they are.

Of a finding with many fds the column FD shows the first 8 and how many more there are (+N); --json has all of them.

Examples:
  fdbroker audit
  fdbroker audit --pid 4711 --verbose
  fdbroker audit --json
  fdbroker audit --textfile /var/lib/prometheus/node-exporter      as root, by a timer: systemd/fdbroker-audit.timer

Exit status: 0 no findings; 1 none, but clients, the process asked for or, for root, the broker could not be looked at: run it as root; 4 no such process;
5 findings.";

/// Compare the ledger with /proc: leaks, forgotten leases, copies of ended memory
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Write the number of findings to DIR/fdbroker-audit.prom, too, at once and whole, for
    /// Prometheus' node_exporter
    #[arg(long, value_name = "DIR", conflicts_with = "pid")]
    pub textfile: Option<PathBuf>,
    /// Only findings about this process
    #[arg(long, value_name = "N")]
    pub pid: Option<u32>,
    /// Print notes too: things worth knowing that are no faults
    #[arg(short, long)]
    pub verbose: bool,
    /// One line of JSON, with findings and notes
    #[arg(short = 'J', long)]
    pub json: bool,
}
