//! The arguments of `fdbroker run` and their help. Must never act on them.

use super::report::ReportFile;
use std::ffi::OsString;

const HELP: &str = "\
Without --join, COMMAND has a broker of its own, in a private directory (mode 0700) that is removed at the end.
COMMAND finds the broker through FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET; on a terminal the first one is shown at the start, to
be pasted in another terminal. Signals go to COMMAND. If memory was shared, a summary is printed on stderr. The broker's warnings go
there, too; what a call was refused is told to the program alone. A broker that dies is started again in the same place, five times. It
serves this node only: ranks that mpirun starts on other nodes cannot reach it. It needs a hard limit of
900 fds (`ulimit -Hn`), and as many more as it is to hold.

With --report a picture (FILE.svg) or a table (FILE.csv) shows the fds of shared memory over time: open on the node, in
the broker and in the ranks, the cap, and the direct way, which is the number of fds that the ranks would have open if
each kept an fd of every buffer that it uses. Where there is nothing to draw, a line on stderr says why, and no file is
left. A file that cannot be written is an error before COMMAND starts; a file that cannot be written whole is removed.

With --join, `fdbroker run` is a prefix for each rank. On every node the first rank starts a broker and the others join
it. COMMAND takes the place of fdbroker: same pid, signals, exit status, stdin, stdout and inherited fds. There is no
summary. FDBROKER_SOCKET and FDBROKER_ADMIN_SOCKET always name the job's broker on this node, whatever the launcher
passed on. The rank that starts the broker decides --max-fds, so give it to all ranks.

The broker ends when the last rank on the node has ended, for whatever reason. Processes that ranks have left running
count as ranks while they have the fd inherited from the rank; a process that has closed all fds counts while it is
connected. If the broker is killed, another takes its place at once; after five times the next process that joins starts one.

The launcher tells the job: by the environment (PMIX_NAMESPACE, SLURM_JOB_ID with SLURM_STEP_ID, FLUX_JOB_ID, PALS_APID
and others), and by its process on this node (orted, hydra_pmi_proxy, slurmstepd, mpirun, ...), which may be above a
shell script. Without either, the parent process tells the job. Processes started by MPI_Comm_spawn are another job.
--job NAME overrides all this.
Ranks meet in the directory fdbroker-UID in $TMPDIR, else in /tmp, or where another user has that name in fdbroker-UID-1 and
so on: TMPDIR must be the same for all ranks of a node.

With --level-zero, unmodified programs share GPU memory by value: zeMemOpenIpcHandle opens the handle that
zeMemGetIpcHandle gave in another process, and no fd passes between the two. Fds that a program takes from handles are
good in every process, too. This sets ZE_ENABLE_VALIDATION_LAYER=1, and puts the directory of fdbroker's layer first into
LD_LIBRARY_PATH and the layer first into LD_PRELOAD. The loader's validation layer is off then. Together with --cuda only the
handles are good by value, not the fds in them.

With --cuda, unmodified programs share VMM memory: an fd that cuMemExportToShareableHandle gives is a number that
pidfd_getfd and SCM_RIGHTS turn into the memory in any process of the job, whatever its PID namespace and rights, and
the exporter keeps no fd open. All of the processes need it. This puts fdbroker's layer first into LD_PRELOAD; nothing
can be preloaded into a program that is linked statically.

With --cuda=malloc, memory that cudaMalloc (cuMemAlloc) gives from 2 MiB on is VMM memory, too, and the 64 bytes of
cudaIpcGetMemHandle are the broker's handle: good in any process of the job that has the layer, whatever its namespaces, seen by
`fdbroker ls` and `holders`, and under the caps. It sets FDBROKER_CUDA_MALLOC=1. docs/unmodified.md says what differs for a program,
and when not to use it.

Examples:
  fdbroker run -- mpirun -n 4 ./app
  fdbroker run --level-zero -- mpirun -n 4 ./app
  mpirun -n 64 fdbroker run --join --level-zero -- ./app
  fdbroker run --cuda -- python train.py
  fdbroker run --cuda=malloc -- python serve.py
  fdbroker run --max-fds 4096 -- ./app
  fdbroker run --report fds.svg -- ./app
  fdbroker run --report fds.csv -- ./app
  fdbroker run -- fdbroker demo --ranks 8

  mpirun -n 64 fdbroker run --join -- ./app                       Open MPI, MPICH, Intel MPI
  srun -N 8 --ntasks-per-node=4 fdbroker run --join -- ./app      Slurm
  mpirun -n 1 fdbroker run --join -- ./server : -n 7 fdbroker run --join -- ./worker
  mpirun -n 8 sh -c 'ulimit -c 0; fdbroker run --join --max-fds 4096 -- ./app'
  mpirun -n 4 fdbroker run --join --job coupled -- ./ocean &      two launchers, one broker
  mpirun -n 4 fdbroker run --join --job coupled -- ./ice";

/// What the CUDA layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cuda {
    /// VMM memory that is exported as an fd
    Vmm,
    /// The same, and memory of cudaMalloc by CUDA's IPC calls
    Malloc,
}

/// Run a command with a private broker: no root, no installation
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Most fds of shared memory on the node [default: the size of the broker's fd table]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_fds: Option<u64>,
    /// The summary as one line of JSON
    #[arg(short = 'J', long, conflicts_with = "join")]
    pub json: bool,
    /// No summary, and of the broker's log nothing but errors
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Share one broker with the other processes of this job on this node; a prefix for each rank
    #[arg(long)]
    pub join: bool,
    /// With --join: name the job if its launcher does not; the same NAME for all its processes
    #[arg(long, value_name = "NAME", requires = "join")]
    pub job: Option<String>,
    /// At the end, write the job's fds over time: a picture if FILE ends with .svg, a table if with
    /// .csv; see below
    #[arg(long, value_name = "FILE", conflicts_with = "join", value_parser = ReportFile::parse)]
    pub report: Option<ReportFile>,
    /// Let Level Zero IPC handles of COMMAND work by value in all processes of the node: see below
    #[arg(long)]
    pub level_zero: bool,
    /// Let CUDA VMM memory that COMMAND exports as an fd reach all processes of the node; =malloc:
    /// memory of cudaMalloc, too: see below
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "vmm")]
    pub cuda: Option<Cuda>,
    /// Command and its arguments, after `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
