//! The arguments of `fdbroker run` and their help. Must never do anything.

use std::ffi::OsString;
use std::path::PathBuf;

const HELP: &str = "\
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

/// Run a command with a private broker: no root, no installation
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
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
