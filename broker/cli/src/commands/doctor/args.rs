//! The arguments of `fdbroker doctor` and their help. Must never do anything.

const HELP: &str = "\
Checks the broker that the environment names (and shares a page with it), limits of fds and mappings, what the kernel offers
and allows (pidfds, SO_PASSRIGHTS, Yama, seccomp), namespaces, device files, the Level Zero and CUDA drivers, the layers for
programs that know nothing of fdbroker, and the systemd service. Drivers and layers are loaded by processes of their own,
since a driver may hang. Changes nothing.

ok    nothing to do
warn  sharing works, but something is missing or will soon run out
fail  sharing does not work for this user on this node

Examples:
  fdbroker doctor
  fdbroker run -- fdbroker doctor                    would a job's own broker work here?
  fdbroker doctor --json | jq '.checks[] | select(.verdict != \"ok\")'

Exit status 5: at least one check fails, or no broker serves this user.";

/// Find out why memory cannot be shared on this node, and what to do; works without a broker too
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
