//! The arguments of `fdbroker watch` and their help. Must never do anything.

use super::since::Since;
use crate::subject::Subject;

const HELP: &str = "\
Events of clients: connected, gone. Of allocations: deposit, grant, evict, recall, silent (the owner has not answered a recall
in time), end (with the reason). Of caps: refusal (of a request, a deposit or a connection, with the cap that is
full). Of the node: started, drain, undrain, caps, hang (a close of a user's fd has not returned for a second). `lost` counts the events that this command was too slow for. Times are UTC.

--since TIME begins with what has happened: the broker keeps the last 10,000 events, but no grants. When there is no room for one
more, the oldest one of the user with most of them goes, so that a busy user does not push out what concerned others. An upgraded
broker goes on with them; after a crash they are lost, and the first event is `started`.

When the broker ends, the command waits up to 10 s for the next one (after an upgrade or a restart), and goes on with it. A
line on stderr says so; with --json it is an object among the events:
  {\"time_seconds\":...,\"event\":\"reconnected\",\"broker_pid\":...,\"incarnation\":...,\"continued\":...,\"gap_seconds\":...}
Events of the gap_seconds before this object are not shown. `continued` is true if the new broker continues the ledger of the
old one; else it is a new ledger, and clients reconnect by themselves. The job of --filter is looked up once, at the start.
time_seconds counts from 1970 (UTC).

A service that an administrator has stopped is not started by this command, if the user may read the file `generations`
beside the socket, as root and the broker's user may.

With --objects it tells what happens to named objects instead: sealed (it can be had), replaced, deleted (also when its time is
over), evicted, aborted (it was in the making), each with the version, and lost when events were. It asks the clients' socket
(FDBROKER_SOCKET), and shows the objects of the user who runs it. It begins now: the broker keeps no events of objects, so
--since does not go with it. `fdbroker objects --sort AGE` shows which objects are new.

Examples:
  fdbroker watch
  fdbroker watch --filter pid:4711
  fdbroker watch --since 10m
  fdbroker watch --since all --no-follow --filter uid:1000
  fdbroker watch --objects
  fdbroker watch --objects model/
  fdbroker watch --json | jq -c 'select(.event == \"refusal\")'

Exit status: 0 after Ctrl-C and with --no-follow, 3 if the broker has ended and no other has started.";

/// Print the broker's events as they happen, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Only events of this subject, and of the node: a handle (128 hex digits), SLOT.GENERATION or
    /// a virtual fd as `ls` shows them, pid:N, uid:N or job:NAME
    #[arg(long, value_name = "WHAT")]
    pub filter: Option<Subject>,
    /// Begin with the events of the last TIME, such as 90s, 10m, 2h or 1d, or with all that the
    /// broker has
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// With --since: print these events alone, and end
    #[arg(long, requires = "since")]
    pub no_follow: bool,
    /// What happens to named objects instead; with PREFIX only to those whose names begin with it
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, default_missing_value = "", conflicts_with = "filter")]
    pub objects: Option<String>,
    /// With --objects: the names of this process's job (its cgroup), instead of the user's
    #[arg(long, requires = "objects")]
    pub job: bool,
    /// One JSON object per line
    #[arg(short = 'J', long)]
    pub json: bool,
}
