//! Stands between a client and the daemon, and counts their messages; events have a socket of their
//! own and do not pass. Must never be in a measured time.

use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_scm::{ReceivedFds, RecvError, recv, send_timeout};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

pub struct Relay {
    dir: tempfile::TempDir,
    passed: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Relay {
    /// For one client.
    pub fn start(daemon: PathBuf) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (listener, at) = seqpacket(&dir.path().join("relay.sock"));
        bind(listener.as_raw_fd(), &at).expect("bind");
        listen(&listener, Backlog::new(1).expect("small")).expect("listen");
        let passed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&passed);
        let thread = std::thread::spawn(move || {
            let client = accept4(&listener, SockFlag::SOCK_CLOEXEC).expect("a client");
            let (broker, at) = seqpacket(&daemon);
            connect(broker.as_raw_fd(), &at).expect("connect");
            pass_on(&[client, broker], &count);
        });
        Relay { dir, passed, thread }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("relay.sock")
    }

    /// Messages so far.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Acquire)
    }

    /// Messages in all, once the client has gone.
    pub fn end(self) -> u64 {
        self.thread.join().expect("no panic");
        self.passed.load(Ordering::Acquire)
    }
}

fn seqpacket(path: &Path) -> (OwnedFd, UnixAddr) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("socket");
    (socket, UnixAddr::new(path).expect("a short path"))
}

/// Until one of the two closes its end.
fn pass_on(ends: &[OwnedFd; 2], passed: &AtomicU64) {
    let (mut bytes, mut fds) = (vec![0; MAX_MESSAGE_BYTES], ReceivedFds::new());
    loop {
        let mut polled = [0, 1].map(|end| PollFd::new(ends[end].as_fd(), PollFlags::POLLIN));
        poll(&mut polled, PollTimeout::NONE).expect("no signal comes");
        for (from, to) in [(0, 1), (1, 0)] {
            let message = match recv(ends[from].as_fd(), &mut bytes, &mut fds) {
                Ok(message) => message,
                Err(RecvError::WouldBlock) => continue,
                Err(_) => return,
            };
            passed.fetch_add(1, Ordering::Release);
            let whole = &bytes[..message.len];
            if send_timeout(ends[to].as_fd(), whole, fds.as_borrowed(), None).is_err() {
                return;
            }
            fds.clear();
        }
    }
}
