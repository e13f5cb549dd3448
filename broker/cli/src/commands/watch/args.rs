//! The arguments of `fdbroker watch` and their help. Must never do anything.

use crate::subject::Subject;

const HELP: &str = "\
Events: connected, gone (a client); deposit, grant, evict, recall, silent (a recall is not answered in time), end (of an
allocation, with why); refusal (with the cap that is full); drain, undrain, caps (of the node); lost (events that this
command was too slow for, and how many). Times are UTC.

When the broker ends, one in its place - after an upgrade or a restart - is waited for, for 10 s, and watched from then on. A
line on stderr says so; with --json it is an object in its place among the events:
  {\"time_seconds\":...,\"event\":\"reconnected\",\"broker_pid\":...,\"incarnation\":...,\"continued\":...,\"gap_seconds\":...}
What happened in the gap_seconds before is not told. `continued`: the ledger of the former one goes on; else it is a new one,
to which clients come back by themselves. A job of --filter is meant as it was at the start. time_seconds, of every object,
counts from 1970 (UTC).

A service that was stopped is not started for it, where the file `generations` beside the socket can be read, as root and the
broker's own user can.

Examples:
  fdbroker watch
  fdbroker watch --filter pid:4711
  fdbroker watch --json | jq -c 'select(.event == \"refusal\")'

Exit status: 0 after Ctrl-C, 3 when the broker has ended and none has come in its place.";

/// Show what happens as it happens, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Only events of this, and those of the node: a handle (128 hex digits), SLOT.GENERATION as `ls` shows it, pid:N,
    /// uid:N or job:NAME
    #[arg(long, value_name = "WHAT")]
    pub filter: Option<Subject>,
    /// One JSON object a line
    #[arg(short = 'J', long)]
    pub json: bool,
}
