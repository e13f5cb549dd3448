//! `fdbroker stop`: ends the broker that programs have started. Must never end another one.

use crate::admin::{Admin, find_socket};
use crate::error::{Error, Result};
use crate::output::{Output, counted};
use crate::rooms::of_started;
use crate::rooms::room::GATE;
use std::time::{Duration, Instant};

/// Longest wait for the end: the keeper looks every half second, and kills a broker that hangs
/// after 5 s.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

const HELP: &str = "\
Such a broker ends by itself some seconds after its last client, unless it holds kept or pinned memory. This command ends it at once:
clients lose their connection, and named objects end. Memory that is mapped stays. FDBROKER_SOCKET may name the broker; without it,
it is the one that programs of this user, or of this scheduler's job, have started on this node. A broker of `fdbroker run` ends with its
command, and the node service by `systemctl stop fdbrokerd`.

Examples:
  fdbroker stop
  FDBROKER_SOCKET=$path fdbroker stop";

/// End the broker that programs have started by themselves
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let path = find_socket(|name| std::env::var_os(name));
    let mut admin = Admin::connect(&path)?;
    let Some(room) = of_started(&path) else {
        return Err(Error::NotFound(format!(
            "the broker at {} was not started by a program; end the command of `fdbroker run`, or stop the service (systemctl stop fdbrokerd)",
            path.display()
        )));
    };
    let Some(gate) = room.open(GATE)? else { return Err(Error::BrokerEnded { path }) };
    // One that hangs is ended, too.
    let status = admin.status().ok();
    let pid = status.map(|status| status.pid.get());
    let clients = status.map(|status| status.uses.connections.now.get());
    room.ask_to_stop()?;
    let until = Instant::now() + END_LIMIT;
    while room.is_current(&gate, GATE) {
        if Instant::now() >= until {
            return Err(Error::Other(format!(
                "the broker at {} has not ended: its keeper, a process `fdbroker-keeper`, is stopped or has been killed just now; continue it (kill -CONT), or try again",
                path.display()
            )));
        }
        std::thread::sleep(LOOK);
    }
    let mut out = Output::stdout();
    if args.json {
        out.json_line(&serde_json::json!({ "pid": pid, "clients": clients }))?;
    } else {
        let pid = pid.map(|pid| format!(" of pid {pid}")).unwrap_or_default();
        // One that hung did not say how many it had.
        let clients = clients.map_or("its clients".into(), |clients| counted(clients, "client"));
        out.text(&format!("the broker{pid} has ended; {clients} lost the connection\n"))?;
    }
    out.finish()
}
