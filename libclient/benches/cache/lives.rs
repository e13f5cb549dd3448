//! The life of a buffer in a rank, in batches: acquired, its fd closed and told as imported, given
//! back; beside a raw ping-pong with as many fds. And the messages that it takes, counted by a
//! relay. Must never map anything: an import is the driver's time.

use crate::daemon::Daemon;
use crate::misses::per_call;
use crate::relay::Relay;
use crate::report::{Report, median};
use crate::world::{World, deadline};
use fdbroker_client::{Client, Handle, Lease};
use fdbroker_scm::{ReceivedFds, recv_waiting, send, seqpacket_pair};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};

/// Buffers of one batch.
const BATCH: usize = 64;
/// The cases take turns, so that all see the machine's good and bad moments.
const TURNS: usize = 41;
const BATCHES: usize = 50;
/// Bytes of a raw message.
const RAW_BYTES: usize = 64;
/// The argument that makes this program the other end of the ping-pong.
pub const RAW_PEER: &str = "--raw-peer";

pub fn measure(daemon: &Daemon, world: &World, report: &mut Report) {
    // The last registered: the daemon holds them, so no recall is in the time.
    let handles = &world.handles[world.handles.len() - BATCH..];
    let mut peer = RawPeer::start();
    let (mut raw, mut life) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        raw.push(per_call(BATCHES, |_| peer.exchange()));
        life.push(per_call(BATCHES, |_| live(&world.consumer, handles)));
    }
    let [raw, life] = [raw, life].map(|times| median(times) / BATCH as f64);
    report.note("raw ping-pong of 64 bytes and 64 fds, per fd", raw / 1000.0, "us");
    let what = "life of a buffer in batches of 64: acquire, told, release";
    report.add(what, life / 1000.0, "us", 20.0);
    report.note("  over the raw", life / raw, "x");
    report.add("  messages per buffer, answers included", messages(daemon, handles), "", 0.1);
}

/// A batch of buffers, from acquire to release.
fn live(client: &Client, handles: &[Handle]) {
    let mut leases: Vec<Lease> = Vec::with_capacity(handles.len());
    let take = |_, granted: Result<fdbroker_client::Grant, _>| {
        let mut grant = granted.expect("granted");
        drop(grant.fd);
        grant.lease.mapped();
        leases.push(grant.lease);
    };
    client.acquire_each(handles, deadline(), take).expect("connected");
}

/// How many messages go either way, for each buffer.
fn messages(daemon: &Daemon, handles: &[Handle]) -> f64 {
    let relay = Relay::start(daemon.socket());
    let client = Client::builder().socket(relay.socket()).name("counted").connect();
    let client = client.expect("connect");
    let before = relay.passed();
    (0..BATCHES).for_each(|_| live(&client, handles));
    drop(client);
    (relay.end() - before) as f64 / (BATCHES * BATCH) as f64
}

/// A process that answers each message with one of as many bytes and `BATCH` fds.
struct RawPeer {
    child: Child,
    socket: OwnedFd,
    fds: ReceivedFds,
}

impl RawPeer {
    fn start() -> Self {
        let (socket, theirs) = seqpacket_pair().expect("socketpair");
        for end in [&socket, &theirs] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::empty())).expect("blocking");
        }
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        let child = command.arg(RAW_PEER).stdin(theirs).spawn().expect("started");
        RawPeer { child, socket, fds: ReceivedFds::with_capacity(BATCH) }
    }

    fn exchange(&mut self) {
        send(self.socket.as_fd(), &[1; RAW_BYTES], &[]).expect("sent");
        let answer = recv_waiting(self.socket.as_fd(), &mut [0; RAW_BYTES], &mut self.fds);
        assert_eq!((answer.expect("answered").len, self.fds.len()), (RAW_BYTES, BATCH));
        self.fds.clear();
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process of [`RawPeer`]: its socket is stdin. Ends with its parent.
pub fn answer_raw() {
    let memfd = memfd_create(c"fdbroker-bench-raw", MFdFlags::MFD_CLOEXEC).expect("memfd");
    let (fds, stdin) = ([memfd.as_fd(); BATCH], std::io::stdin());
    let (mut bytes, mut none) = ([0; RAW_BYTES], ReceivedFds::with_capacity(0));
    while recv_waiting(stdin.as_fd(), &mut bytes, &mut none).is_ok() {
        send(stdin.as_fd(), &bytes, &fds).expect("sent");
    }
}
