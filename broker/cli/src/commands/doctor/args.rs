//! The arguments of `fdbroker doctor` and their help. Must never do anything.

const HELP: &str = "\
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

/// Find out why memory cannot be shared on this node, and what to do; works without a broker too
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}
