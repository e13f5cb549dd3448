//! `fdbroker health`: one line and one exit status on whether the node's broker does its work, for
//! programs that look at nodes. Must never take longer than a second, whatever the broker does.

use crate::admin::{Admin, client_socket_of, viewing};
use crate::error::Result;
use crate::output::{Output, say};
use crate::records::{StatusView, amount};
use fdbroker_protocol::admin::NodeStatus;
use fdbroker_protocol::limits::NAME_BYTES;
use fdbroker_protocol::message::{Hello, HelloReply};
use fdbroker_protocol::{ErrorCode, Gauge, Kind, Message, Status, Writer};
use fdbroker_scm::ReceivedFds;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

const HELP: &str = "\
Asks the broker for its state, and says hello at the clients' socket. It takes less than a second, also when the broker is
stopped, and starts no broker that was stopped. Run it as root or as a member of the monitor_group: another user is not told
of the configuration and of the node's caps.

0  ok        clients are served
1  warning   draining; a cap of the node filled to 90%; no place for this user; a call on a client's fd that hangs; a store
             of systemd that is too small for what may be kept
2  critical  no broker; no answer; another server at the clients' socket, or none; a socket that somebody has replaced; a
             configuration that the broker refuses

Examples:
  fdbroker health
  In the script of HealthCheckProgram= of slurm.conf(5), where a warning leaves the node in service:
    said=$(fdbroker health) || [ $? = 1 ] || scontrol update NodeName=\"$(hostname -s)\" State=DRAIN Reason=\"$said\"
  As a probe of Kubernetes:
    exec: {command: [sh, -c, 'fdbroker health; [ $? -lt 2 ]']}";

/// Say in one line whether the broker does its work, with exit status 0, 1 (warning) or 2
/// (critical)
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {}

/// Longest wait for the state, and then for the answer to hello, each with its connect. A healthy
/// broker needs a millisecond; both together are less than a second.
const PATIENCE: Duration = Duration::from_millis(400);

/// The name by which it says hello.
const NAME: &[u8] = b"health";

/// Of its fds a reply to hello has the generation page's and the liveness word's.
const FDS_OF_REPLY: usize = 4;

/// What has been found: the worst decides.
#[derive(Debug, Default)]
struct Findings {
    critical: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn status(&self) -> u8 {
        match (&self.critical[..], &self.warnings[..]) {
            ([], []) => 0,
            ([], _) => 1,
            _ => 2,
        }
    }
}

pub fn run() -> Result<u8> {
    let mut found = Findings::default();
    let until = Instant::now() + PATIENCE;
    let state = viewing::connect_again_within(PATIENCE).and_then(|admin| {
        let path = admin.path().to_owned();
        admin.within(left(until)).status().map(|state| (path, state))
    });
    let ok = match &state {
        Err(error) => {
            found.critical.push(error.to_string());
            String::new()
        }
        Ok((path, status)) => {
            look_at(&StatusView::from(status), &mut found);
            match greet(&client_socket_of(path), status) {
                Ok(None) => {}
                Ok(Some(why)) => found.warnings.push(why),
                Err(why) => found.critical.push(why),
            }
            let connections = status.uses.connections.now.get();
            format!("pid {}, {connections} connections", status.pid.get())
        }
    };
    let status = found.status();
    let word = ["ok", "warning", "critical"][usize::from(status)];
    let all: Vec<String> = found.critical.into_iter().chain(found.warnings).collect();
    let said = if all.is_empty() { ok } else { all.join("; ") };
    let mut out = Output::stdout();
    let written = out.text(&format!("{word}: {}\n", said.replace('\n', " ")));
    match written.and_then(|()| out.finish()) {
        Ok(()) => Ok(status),
        // 1 would be a warning.
        Err(error) => {
            say!("fdbroker: {error}");
            Ok(2)
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// What the state says.
fn look_at(status: &StatusView, found: &mut Findings) {
    let count = |gauge: Gauge| status.gauges[gauge].filter(|count| *count > 0);
    found.critical.extend(status.config_warning().map(String::from));
    if count(Gauge::SocketsAway).is_some() {
        found.critical.extend(status.sockets_warning());
    }
    if status.draining {
        found.warnings.push("draining: it takes nothing new".into());
    }
    if let Some(hung) = count(Gauge::LanesHung) {
        found.warnings.push(format!("{hung} calls on fds of clients hang: see `fdbroker doctor`"));
    }
    if let Some(short) = count(Gauge::StoreShort) {
        let what = "FileDescriptorStoreMax= lacks entries for what is kept";
        found.warnings.push(format!("{what}: {short}"));
    }
    for (resource, used, cap) in status.nearly_full() {
        let (used, cap) = (amount(resource, used.counted()), amount(resource, cap));
        found.warnings.push(format!("{used} of {cap} {resource}"));
    }
}

/// Says hello at the clients' socket: whoever answers must be the broker whose state that is. What
/// is to be warned of, if it is.
pub fn greet(path: &Path, state: &NodeStatus) -> std::result::Result<Option<String>, String> {
    let connections = &state.uses.connections;
    if connections.known_cap().is_some_and(|cap| connections.now.get() >= cap) {
        // It would be refused: one more refusal that is counted and told of, and nobody's.
        return Ok(None);
    }
    let at = path.display();
    let failed = |why: &dyn std::fmt::Display| format!("the clients' socket {at}: {why}");
    let until = Instant::now() + PATIENCE;
    let socket = Admin::connect_within(path, PATIENCE).map_err(|error| failed(&error))?;
    let mut name = [0; NAME_BYTES];
    name[..NAME.len()].copy_from_slice(NAME);
    let deadline_ms = u32::try_from(PATIENCE.as_millis()).unwrap_or_default().into();
    let hello = Hello { deadline_ms, ..Hello::new(std::process::id(), name) };
    let (mut writer, mut bytes) = (Writer::new(), [0; 1024]);
    let mut fds = ReceivedFds::with_capacity(FDS_OF_REPLY);
    writer.start(Kind::Hello, 1).push(&hello);
    let _ = fdbroker_scm::send(socket.as_fd(), writer.finish(0, 0), &[]);
    let received =
        fdbroker_scm::recv_timeout(socket.as_fd(), &mut bytes, &mut fds, Some(left(until)));
    let length = received.map_err(|error| failed(&format!("hello is not answered: {error}")))?.len;
    let message = Message::parse(&bytes[..length]).map_err(|error| failed(&error))?;
    let refused = |status: Status| match status.result() {
        // It serves, and waits for others.
        Err(ErrorCode::Again | ErrorCode::TimedOut) => Ok(None),
        // It serves all but this user, or nobody else.
        Err(ErrorCode::NoQuota) => Ok(Some(failed(&status))),
        _ => Err(failed(&status)),
    };
    match message.kind {
        Kind::HelloReply => {
            let reply = message.body_as::<HelloReply>().map_err(|error| failed(&error))?;
            let is_it = (reply.node, reply.incarnation) == (state.node, state.incarnation);
            is_it.then_some(None).ok_or_else(|| failed(&"another broker serves there"))
        }
        Kind::Failed => message.status().map_err(|error| failed(&error)).and_then(refused),
        kind => Err(failed(&format!("a {kind} message is no answer to hello"))),
    }
}
