//! The command line: names, defaults and help. Must never do anything; [`crate::main`] does.

use crate::act_args;
use crate::completions::Shell;
use crate::config::Action;
use crate::demo::plan::{Memory, Way};
use crate::doctor::probe::Driver;
use crate::holders::Subject;
use crate::limits::Assignment;
use crate::metrics::listen::Listen;
use crate::table::{self, ListArgs};
use crate::top;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  See it work, and what it saves:
    fdbroker demo
  Run a job with a broker of its own, on this node:
    fdbroker run -- mpirun -n 4 ./app
  The same on many nodes, where the ranks of each node share a broker:
    mpirun -n 64 fdbroker run --join -- ./app
  Look at the broker from inside:
    fdbroker run -- sh -c './app & sleep 5; fdbroker ls; wait'
  Who holds what, on a node that runs fdbrokerd:
    fdbroker status
    fdbroker ls
    fdbroker holders 12.3
  Before maintenance:
    fdbroker drain --wait 600

Environment:
  FDBROKER_SOCKET         socket of the broker for clients
  FDBROKER_ADMIN_SOCKET   its socket for everything but run and demo; default: DIR-admin/admin.sock for a client's
                          socket DIR/NAME, else $XDG_RUNTIME_DIR/fdbroker-admin/admin.sock if it exists, else
                          /run/fdbroker-admin/admin.sock
  NO_COLOR                no colour on the terminal

Exit status: 0 done; 1 error; 2 usage; 3 no broker answers; 4 not found or denied; 5 findings. `run` ends with the status of
its command: 127 if there is no such command, 128 + N if signal N killed it.";

/// Share memory between the processes of a node without running out of file descriptors.
///
/// A producer deposits the fd of an allocation once and gets a 64-byte handle that can be copied by value;
/// whoever presents the handle gets the memory. The broker keeps every count of fds under a cap and can say at
/// any time who holds what.
#[derive(Debug, Parser)]
#[command(name = "fdbroker", version, after_long_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command with a private broker: no root, no installation
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Show with real processes that memory is shared all-to-all under a cap, and what happens without a broker
    #[command(after_long_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Show the node at a glance: counts, peaks and caps
    Status {
        /// One line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// List the allocations
    #[command(after_long_help = table::after_help(LS_EXAMPLES))]
    Ls(ListArgs),
    /// List the clients and what they are charged for
    #[command(after_long_help = table::after_help(CLIENTS_EXAMPLES))]
    Clients(ListArgs),
    /// List who has what open or mapped
    #[command(after_long_help = table::after_help(HOLDERS_EXAMPLES))]
    Holders {
        /// Only this: a handle (128 hex digits), SLOT.GENERATION as `ls` shows it, pid:N, uid:N or job:NAME
        #[arg(value_name = "WHAT")]
        subject: Option<Subject>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Have the broker close fds that it can get again when they are needed
    #[command(after_long_help = act_args::EVICT_EXAMPLES)]
    Evict(act_args::EvictArgs),
    /// End allocations for everybody, and say who has duplicates of their fds still
    #[command(after_long_help = act_args::REVOKE_EXAMPLES)]
    Revoke(act_args::RevokeArgs),
    /// Empty the broker before maintenance, and wait until it is empty
    #[command(after_long_help = act_args::DRAIN_EXAMPLES)]
    Drain(act_args::DrainArgs),
    /// Show what happens as it happens, until Ctrl-C
    #[command(after_long_help = act_args::WATCH_EXAMPLES)]
    Watch {
        /// Only events of this, and those of the node: a handle (128 hex digits), SLOT.GENERATION as `ls` shows it, pid:N,
        /// uid:N or job:NAME
        #[arg(long, value_name = "WHAT")]
        filter: Option<Subject>,
        /// One JSON object a line
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Compare the ledger with /proc: leaks, forgotten leases, orphans, drift
    #[command(after_long_help = AUDIT_HELP)]
    Audit {
        /// Only what is about this process
        #[arg(long, value_name = "N")]
        pid: Option<u32>,
        /// Notes too: what is worth to know and no fault
        #[arg(short, long)]
        verbose: bool,
        /// One line of JSON, findings and notes
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// List the jobs that use the broker, and what each is charged for
    #[command(after_long_help = table::after_help(JOBS_EXAMPLES))]
    Jobs(ListArgs),
    /// Show the caps of every level, or change one at run time
    #[command(after_long_help = LIMITS_EXAMPLES)]
    Limits {
        #[command(subcommand)]
        action: Option<LimitsAction>,
        /// One line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Show everything about one allocation, and its holders
    #[command(after_long_help = SHOW_EXAMPLES)]
    Show {
        /// A handle (128 hex digits), or SLOT.GENERATION as `ls` shows it
        #[arg(value_name = "WHAT")]
        subject: Subject,
        /// One line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Watch the node live: caps as bars, rates, the biggest holders, the oldest leases, events
    #[command(after_long_help = TOP_HELP)]
    Top {
        /// Print one frame as text and end
        #[arg(long)]
        once: bool,
        /// Time between two looks at the broker, at least 0.1
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = top::interval)]
        interval: Duration,
    },
    /// Print the broker's numbers as OpenMetrics text, or serve them to Prometheus
    #[command(after_long_help = METRICS_EXAMPLES)]
    Metrics {
        // Not a doc comment: rustdoc takes the brackets for a link.
        #[arg(
            long,
            value_name = "ADDRESS",
            help = "Serve them by HTTP until a signal: unix:PATH (mode 0600), 127.0.0.1:PORT or [::1]:PORT"
        )]
        listen: Option<Listen>,
    },
    /// Check the daemon's configuration, or show it with the origin of each value
    #[command(after_long_help = CONFIG_EXAMPLES)]
    Config {
        #[command(subcommand)]
        action: Action,
    },
    /// Print the completions of a shell
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// Of this shell
        shell: Shell,
    },
    /// Find out why memory cannot be shared on this node, and what to do; works without a broker too
    #[command(after_long_help = DOCTOR_HELP)]
    Doctor {
        /// One line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Asks a GPU driver for `doctor`
    #[command(hide = true)]
    DoctorProbe {
        /// Which
        driver: Driver,
    },
    /// Write the manual pages into a directory
    Man {
        /// Such as /usr/local/share/man/man1
        dir: PathBuf,
    },
    /// The daemon; `run` and `demo` start it
    #[command(hide = true)]
    Broker {
        /// A directory to remove at the end, when the lifeline on stdin has ended
        #[arg(long)]
        remove: Option<PathBuf>,
        #[command(flatten)]
        args: fdbrokerd::cli::Args,
    },
    /// The job of `run`
    #[command(hide = true)]
    Exec {
        /// Command and arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Starts the broker of `run --join` and ends it
    #[command(hide = true)]
    Keeper {
        /// The job's directory
        dir: PathBuf,
        /// As of `run`
        #[arg(long)]
        max_fds: Option<u64>,
    },
    /// A process of `demo`
    #[command(hide = true)]
    DemoRank {
        /// Its number
        number: u32,
        /// How memory is shared
        way: Way,
        /// As the parent wrote it
        plan: String,
    },
}

const RUN_EXAMPLES: &str = "\
Without --join the broker serves this job alone, from a directory of its own (mode 0700) that goes away with it.
COMMAND finds it through FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET. Signals go to COMMAND. A summary is printed on
stderr. It is for one node: the ranks that mpirun starts on others cannot reach it.

With --join it is a prefix for the ranks. The first rank on a node starts the broker, the others join it, on every node
of the job. COMMAND then takes the place of fdbroker: same pid, signals, exit status, stdin, stdout and inherited fds;
there is no summary. FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET are always set to the job's broker on this node,
whatever the launcher passed on. --max-fds counts for the rank that starts the broker: give it to all.

The broker ends when the last rank on the node has ended, however it did, with everything that ranks have started and
left running and that still has the inherited fd of its membership; a program that has closed all its fds counts as
long as it is connected. A joined broker that has been killed is started again by the next process that joins.

A job is what its launcher says: PMIX_NAMESPACE, SLURM_JOB_ID with SLURM_STEP_ID and their like in the environment, and
the launcher's process on this node (orted, hydra_pmi_proxy, slurmstepd, mpirun, ...), also above a shell script. Where
there is none of these it is the parent process. What MPI_Comm_spawn starts is a job of its own. --job NAME overrides
all this.
Ranks meet in fdbroker-UID in $TMPDIR, else in /tmp: TMPDIR must be the same for all ranks of a node.

With --level-zero unmodified programs share GPU memory by value: what zeMemGetIpcHandle gives in one process,
zeMemOpenIpcHandle opens in another, with no fd passed between them. It sets ZE_ENABLE_VALIDATION_LAYER=1 and puts
the directory of fdbroker's layer first into LD_LIBRARY_PATH; another validation layer is not used then.

Examples:
  fdbroker run -- mpirun -n 4 ./app
  fdbroker run --level-zero -- mpirun -n 4 ./app
  mpirun -n 64 fdbroker run --join --level-zero -- ./app
  fdbroker run --max-fds 4096 -- ./app
  fdbroker run --report fds.svg -- ./app
  fdbroker run -- fdbroker demo --ranks 8

  mpirun -n 64 fdbroker run --join -- ./app                       Open MPI, MPICH, Intel MPI
  srun -N 8 --ntasks-per-node=4 fdbroker run --join -- ./app      Slurm
  mpirun -n 1 fdbroker run --join -- ./server : -n 7 fdbroker run --join -- ./worker
  mpirun -n 8 sh -c 'ulimit -c 0; fdbroker run --join --max-fds 4096 -- ./app'
  mpirun -n 4 fdbroker run --join --job coupled -- ./ocean &      two launchers, one broker
  mpirun -n 4 fdbroker run --join --job coupled -- ./ice";

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Most fds of shared memory on the node [default: the size of the broker's fd table]
    #[arg(long, value_name = "N")]
    pub max_fds: Option<u64>,
    /// The summary as one line of JSON
    #[arg(short = 'J', long, conflicts_with = "join")]
    pub json: bool,
    /// Share one broker with the other processes of this job on this node; for use by each rank
    #[arg(long)]
    pub join: bool,
    /// With --join: which job this is, if its launcher cannot tell; the same NAME for all of its processes
    #[arg(long, value_name = "NAME", requires = "join")]
    pub job: Option<String>,
    /// Draw the job's fds over time: the broker's, the ranks', the cap, and what it would be without a broker
    #[arg(long, value_name = "FILE.svg", conflicts_with = "join")]
    pub report: Option<PathBuf>,
    /// Make the Level Zero IPC handles of COMMAND good by value, in all processes of the node: see below
    #[arg(long)]
    pub level_zero: bool,
    /// Command and its arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const DEMO_EXAMPLES: &str = "\
Each rank is a process. It registers its buffers, writes their handles - 64-byte records, no fds - to a file,
opens every buffer of every other rank by handle, checks every byte against what its owner wrote, and leaves
its mark in its own 8 bytes at the start of the buffer. At the end each owner checks all marks.

The direct way does the same without a broker: every fd goes from process to process by SCM_RIGHTS and is kept.
It ends when a process has no free fd; `failed_at` is the number of fds of shared memory open on the node
then, `null` if everything fitted. All processes run under RLIMIT_NOFILE = --max-fds in both ways.

Fds are counted by the broker's ledger and confirmed in /proc, with all processes stopped while it is read.

With FDBROKER_SOCKET set and no --max-fds, the broker named there is used; then the peaks are those since its start.

Examples:
  fdbroker demo
  fdbroker demo --ranks 8 --buffers 200 --max-fds 256 --json
  fdbroker demo --memory udmabuf            real dma-bufs
  fdbroker demo --memory cuda               memory of an NVIDIA GPU
  fdbroker demo --memory level-zero         memory of a Level Zero driver's device, such as Intel's
  fdbroker demo --hold 60                   keep everything open for a minute, to look at it

Exit status: 0 when no byte was wrong and nothing failed with the broker (the direct way may fail), else 1.";

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub ranks: u32,
    /// Buffers of each process
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub buffers: u32,
    /// Bytes of each buffer; made whole pages, or granules of the device
    #[arg(long, value_name = "BYTES", default_value_t = 65536)]
    pub size: u64,
    /// Most fds of shared memory on the node; also RLIMIT_NOFILE of each process [default: 256]
    #[arg(long, value_name = "N")]
    pub max_fds: Option<u64>,
    /// What the buffers are
    #[arg(long, value_enum, default_value_t = Memory::Auto)]
    pub memory: Memory,
    /// Do it the direct way too; the table always does
    #[arg(long)]
    pub without_broker: bool,
    /// Keep everything open for so long before the end
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub hold: u64,
    /// Longest time for each way
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// One line of JSON instead of the table
    #[arg(short = 'J', long)]
    pub json: bool,
}

const LS_EXAMPLES: &str = "\
Examples:
  fdbroker ls --sort SIZE:desc                     the largest first
  fdbroker ls --filter 'OWNER == none or SIZE >= 1GiB'
  fdbroker ls -o +BASE,SHARE --filter 'STATE == ended and MAPPED > 0'
  fdbroker ls --json -o owner_pid,size_bytes | jq '.allocations[]'";

const CLIENTS_EXAMPLES: &str = "\
Examples:
  fdbroker clients --sort FDS:desc                 who uses most fds
  fdbroker clients --filter 'SILENT == yes or WAITING > 0'";

const SHOW_EXAMPLES: &str = "\
Examples:
  fdbroker show 12.3
  fdbroker show 12.3 --json | jq .allocation.size_bytes

Exit status 4: the broker knows no such allocation.";

const TOP_HELP: &str = "\
In it the key h shows all keys: q quit, p pause, s sort, r reverse, / filter, arrows scroll, + and - the interval.

Events are those of `fdbroker watch`, with the broker's own times (UTC), newest first; several in a row that differ in their
allocation alone are one line. Where the broker takes no further watcher, or is too fast to be followed, a line says so.
A broker that has ended is looked for until one runs again. A service that was stopped is not started for it, where the file
`generations` beside the socket can be read, as root and the broker's own user can.

With --once two looks are taken, an interval apart, so that there are rates; events are those between them. The frame is
as large as the terminal, else 80x24; colours on a terminal only, and not with NO_COLOR. For each refresh at most some
4,096 clients and 8,192 leases are read; where there are more, the frame says so.
pinned_bytes is charged to each holder: ended memory that two processes hold is counted twice.

Examples:
  fdbroker top
  fdbroker top --interval 0.2
  fdbroker top --once > frame.txt";

const CONFIG_EXAMPLES: &str = "\
It is looked at as `fdbrokerd` would, started here: the environment counts too, and whether root asks.

Examples:
  fdbroker config check /etc/fdbroker/fdbrokerd.toml
  fdbroker config show
  fdbroker config show --json | jq '.settings[] | select(.from == \"file\")'

Exit status 1: the daemon would not start; stderr says why.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  fdbroker completions bash > ~/.local/share/bash-completion/completions/fdbroker
  fdbroker completions zsh > ~/.zfunc/_fdbroker                 with ~/.zfunc in fpath
  fdbroker completions fish > ~/.config/fish/completions/fdbroker.fish";

const HOLDERS_EXAMPLES: &str = "\
Examples:
  fdbroker holders                  everyone
  fdbroker holders 12.3             who has this allocation of `fdbroker ls`
  fdbroker holders pid:4711         what a process has
  fdbroker holders uid:1000 --json
  fdbroker holders --filter 'STATE == open and AGE > 5m'

Exit status 4: the broker knows no such allocation, process or user.";

const AUDIT_HELP: &str = "\
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

/// What to do with caps.
#[derive(Debug, Subcommand)]
pub enum LimitsAction {
    /// Change caps until the broker restarts or reads its configuration again
    #[command(after_long_help = LIMITS_EXAMPLES)]
    Set(SetLimitsArgs),
}

/// Arguments of `limits set`.
#[derive(Debug, Args)]
pub struct SetLimitsArgs {
    /// node, domain, job or client; fds, held_fds, held_bytes, open_leases, mapped_leases, allocations or
    /// kept_allocations; a number, also with K, M, G, T, Ki, Mi, Gi or Ti, or none
    #[arg(required = true, value_name = "LEVEL.RESOURCE=VALUE")]
    pub assignments: Vec<Assignment>,
    /// Only say what would change
    #[arg(long)]
    pub dry_run: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

const LIMITS_EXAMPLES: &str = "\
A domain is a user on one listener; a job is a part of it (see `fdbroker jobs`); a client is one connection. A lowered cap
takes nothing away by force: what is above it is evicted or asked for, and nothing is added until it is below.

A change with `set` is in force at once, is logged with who made it, and is lost when the broker restarts or reads its
configuration again. To keep it, write it into [caps.LEVEL] of the configuration. Only root and the broker's user may.

Examples:
  fdbroker limits
  fdbroker limits set node.fds=4096 job.held_bytes=8Gi
  fdbroker limits set --dry-run client.open_leases=none";

const METRICS_EXAMPLES: &str = "\
Counts, peaks and caps of the node, times of grants and recalls, and what the 20 users and jobs with most fds are charged
for; the others are one, called other. Only loopback addresses are taken, and every user of the machine can read them
there; a Unix socket is for this user alone. fdbroker_up is 0 while no broker answers. A dashboard for Grafana is
systemd/grafana.json in the sources, share/doc/fdbroker/examples/grafana.json when installed.

Examples:
  fdbroker metrics
  fdbroker metrics --listen 127.0.0.1:9400                      then http://127.0.0.1:9400/metrics
  fdbroker metrics --listen unix:/run/fdbroker-metrics.sock &
  curl --unix-socket /run/fdbroker-metrics.sock http://localhost/metrics";

const JOBS_EXAMPLES: &str = "\
A job is the cgroup that its launcher made: slurm:ID, pbs:ID, k8s:UID of the pod; else unit:NAME of the nearest service
or scope of systemd; job:KEY where the cgroup says none of these. Processes whose cgroup the broker cannot read, such as
those of other PID namespaces, are of no job.

Examples:
  fdbroker jobs --sort FDS:desc
  fdbroker clients --filter 'JOB == slurm:4711'
  fdbroker ls -o +JOB";

const DOCTOR_HELP: &str = "\
Looks at the broker that the environment names (and shares a page with it), limits of fds and mappings, what the kernel
has and allows (pidfds, SO_PASSRIGHTS, Yama, seccomp), namespaces, device files, the Level Zero and CUDA drivers - each in a
process of its own, since a driver may hang - and the service of systemd. Changes nothing.

ok    as it should be, or of no account here
warn  sharing works, and something near it does not, or will not for long
fail  sharing does not work for this user here

Examples:
  fdbroker doctor
  fdbroker run -- fdbroker doctor                    whether a job's own broker would work here
  fdbroker doctor --json | jq '.checks[] | select(.verdict != \"ok\")'

Exit status 5: something fails.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_when_built_then_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_when_no_double_dash_then_the_commands_flags_are_its_own() {
        let cli = Cli::try_parse_from(["fdbroker", "run", "ls", "--json"]).expect("parses");
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert!(!run.json);
        assert_eq!(run.command, ["ls", "--json"]);
    }
}
