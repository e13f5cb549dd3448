//! The command line: names, defaults and help. Must never do anything; [`crate::main`] does.

use crate::completions::Shell;
use crate::config::Action;
use crate::demo::plan::{Memory, Way};
use crate::doctor::probe::Driver;
use crate::holders::Subject;
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

Environment:
  FDBROKER_SOCKET         socket of the broker for clients
  FDBROKER_ADMIN_SOCKET   its socket for status, ls and holders; default: DIR-admin/admin.sock for a client's
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
        /// Only this: a handle (128 hex digits), SLOT.GENERATION as `ls` shows it, pid:N or uid:N
        #[arg(value_name = "WHAT")]
        subject: Option<Subject>,
        #[command(flatten)]
        list: ListArgs,
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
    /// The daemon; `run` and `demo` start it
    #[command(hide = true)]
    Broker(fdbrokerd::cli::Args),
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

With --once two looks are taken, an interval apart, so that there are rates. The frame is as large as the terminal, else
80x24; colours on a terminal only, and not with NO_COLOR. For each refresh at most some 4,096 clients and 8,192 leases
are read; where there are more, the frame says so.

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
