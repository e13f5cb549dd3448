//! The arguments of `fdbroker limits` and their help. Must never do anything.

use super::cap::{self, Assignment};
use clap::Subcommand;
use fdbroker_protocol::Resource;
use std::path::PathBuf;

const HELP: &str = "\
A domain is a user on one listener; a job is a part of it (see `fdbroker jobs`); a client is one connection. A lowered cap
takes nothing away by force: what is above it is evicted or asked for, and nothing is added until it is below.

A change with `set` is in force at once, is logged with who made it, and is lost when the broker restarts or reads its
configuration again. `fdbroker limits` marks such caps with *; `save` writes them into [caps.SCOPE] of the configuration,
and says which caps change with them: the defaults of domain, job and client follow from the node's. Flags and variables
of the daemon win over its file. Only root and the broker's user may.
";

const EXAMPLES: &str = "\
Examples:
  fdbroker limits
  fdbroker limits set node.fds=4096 job.held_bytes=8Gi
  fdbroker limits set --dry-run client.open_leases=none
  fdbroker limits save";

/// Both texts, and between them the resources: each with the scopes that have a cap of it, and what
/// it counts.
fn after_help() -> String {
    let row = |it: Resource| {
        let has_cap = |scope: &&str| it.scopes().iter().any(|with| with.name() == *scope);
        let scopes: Vec<&str> = cap::scopes().into_iter().filter(has_cap).collect();
        format!("  {:<17} {:<22}  {}\n", it.name(), scopes.join(" "), it.help())
    };
    let rows: String = Resource::capped().map(row).collect();
    format!("{HELP}\nResources, each with the scopes that have a cap of it:\n{rows}\n{EXAMPLES}")
}

/// The help of one assignment, with all names from the tables of scopes and resources.
fn assignment_help() -> String {
    let scopes = cap::scopes().join(", ");
    let resources: Vec<&str> = Resource::capped().map(Resource::name).collect();
    format!(
        "SCOPE: {scopes}. RESOURCE: {}; its name ends in the unit of VALUE. VALUE: a number, also with K, M, G, T \
         (1000s) or Ki, Mi, Gi, Ti (1024s), or none",
        resources.join(", ")
    )
}

/// Show the caps of every level, or change one at run time
#[derive(Debug, clap::Args)]
#[command(after_long_help = after_help())]
pub struct Args {
    #[command(subcommand)]
    pub action: Option<Action>,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

/// What to do with caps.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Change caps until the broker restarts or reads its configuration again
    #[command(after_long_help = after_help())]
    Set(SetArgs),
    /// Write the caps that were changed into the configuration file, so that they outlive a restart
    #[command(after_long_help = after_help())]
    Save(SaveArgs),
}

/// Arguments of `limits save`.
#[derive(Debug, clap::Args)]
pub struct SaveArgs {
    /// Default: the file that the broker reads. A broker of one job has none
    pub file: Option<PathBuf>,
}

/// Arguments of `limits set`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// What to change. The help comes from [`assignment_help`].
    #[arg(required = true, value_name = "SCOPE.RESOURCE=VALUE", help = assignment_help())]
    pub assignments: Vec<Assignment>,
    /// Only say what would change
    #[arg(long)]
    pub dry_run: bool,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    #[test]
    fn help_when_printed_then_it_names_every_resource_with_a_cap_and_its_scopes() {
        let mut command = SetArgs::augment_args(clap::Command::new("set"));
        let help = command.render_long_help().to_string();
        for resource in Resource::capped() {
            assert!(help.contains(resource.name()), "{help}");
        }
        let text = after_help();
        let row = text.lines().find(|line| line.starts_with("  connections "));
        let row = row.expect("a row").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(row, "connections node domain job connections of clients");
    }
}
