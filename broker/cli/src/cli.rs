//! The command line as a whole; the arguments of each command stand in its folder. Must never do
//! anything: `main` does.

use crate::commands::*;
use crate::records::{allocations, clients, jobs};
use crate::subject::of_user::UserListArgs;
use crate::table::{ListArgs, after_help};
use clap::{CommandFactory, Parser, Subcommand};

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
  See who holds what, on a node that runs fdbrokerd:
    fdbroker status
    fdbroker ls
    fdbroker holders 12.3
  Share a file by name, in memory, with all processes of the same user:
    fdbroker put model/a weights.bin
    fdbroker objects
    fdbroker get model/a | sha256sum
    fdbroker rm model/a
  Before maintenance:
    fdbroker drain --wait 600

Environment:
  FDBROKER_SOCKET         the broker's socket for clients: of demo, objects, put, get, rm, pin and watch --objects. It is
                          enough to name a broker. Default: $XDG_RUNTIME_DIR/fdbroker/broker.sock if it exists, else
                          /run/fdbroker/broker.sock; where that has no folder, the broker that programs have started
  FDBROKER_START          1: where none is named or installed, the commands that are clients start one, as programs do
  FDBROKER_ADMIN_SOCKET   the broker's socket for all other commands except run. Default: DIR-admin/admin.sock if
                          FDBROKER_SOCKET is DIR/NAME, else $XDG_RUNTIME_DIR/fdbroker-admin/admin.sock if it exists,
                          else /run/fdbroker-admin/admin.sock
  NO_COLOR                if set, no colours on the terminal

Exit status: 0 done; 1 error; 2 usage; 3 no broker; 4 not found or denied; 5 findings; 6 the broker does not answer (it
is stopped, hangs or is overloaded). `health` has 0, 1 and 2 for what it finds. `run` ends with the
status of its command: 127 if there is no such command, 128 + N if signal N killed it.";

/// Share memory between the processes of a node without running out of file descriptors.
///
/// A producer deposits the fd of an allocation once, and gets a 64-byte handle that can be copied
/// by value. A process that presents the handle gets the memory. The broker keeps all counts of fds
/// under caps, and can list at any time who holds what. Memory can have a name, too: an object is
/// made once, cannot be changed, and is read by any process of the same user.
#[derive(Debug, Parser)]
#[command(name = "fdbroker", version, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::Args),
    Demo(demo::Args),
    Status(status::Args),
    Health(health::Args),
    /// List the allocations
    #[command(after_long_help = after_help(allocations::EXAMPLES))]
    Ls(UserListArgs),
    /// List the clients and what they are charged for
    #[command(after_long_help = after_help(clients::EXAMPLES))]
    Clients(UserListArgs),
    Holders(holders::Args),
    Fd(fd::Args),
    Evict(evict::Args),
    Revoke(revoke::Args),
    Drain(drain::Args),
    Stop(stop::Args),
    Objects(objects::Args),
    Put(put::Args),
    Get(get::Args),
    Rm(rm::Args),
    Pin(pin::Args),
    Watch(watch::Args),
    Audit(audit::Args),
    /// List the jobs that use the broker, and what each is charged for
    #[command(after_long_help = after_help(jobs::EXAMPLES))]
    Jobs(UserListArgs),
    /// List the GPUs that memory is shared of
    #[command(after_long_help = after_help(gpus::EXAMPLES))]
    Gpus(ListArgs),
    Limits(limits::Args),
    Show(show::Args),
    Top(top::Args),
    Metrics(metrics::Args),
    Config(config::Args),
    Completions(completions::Args),
    Doctor(doctor::Args),
    #[command(hide = true)]
    DoctorProbe(doctor::probe::ProbeArgs),
    Man(man::Args),
    #[command(hide = true)]
    Broker(broker::Args),
    #[command(hide = true)]
    Exec(run::exec::ExecArgs),
    #[command(hide = true)]
    Keeper(crate::joining::keeper::KeeperArgs),
    /// What the library runs to start a broker
    #[command(hide = true)]
    Start,
    #[command(hide = true)]
    DemoRank(demo::RankArgs),
}

/// The command line without what is hidden in it: completions and manual pages would name it.
pub fn visible() -> clap::Command {
    let whole = Cli::command();
    let subcommands: Vec<clap::Command> =
        whole.get_subcommands().filter(|it| !it.is_hide_set()).cloned().collect();
    clap::Command::new("fdbroker")
        .bin_name("fdbroker")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_long_help(EXAMPLES)
        .subcommands(subcommands)
}

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
