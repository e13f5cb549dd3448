//! What the tests of this crate share: raw socket calls that the crate itself refuses to make,
//! and a process of one's own for tests that count fds or change limits, ids or signals.
//! It must never go through the crate under test to decide whether that crate is right.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::{env, io};

use crate::shared::full_name;
use fdbroker_scm::{ReceivedFds, seqpacket_pair};

const CHILD: &str = "FDBROKER_SCM_TEST_CHILD";

/// Runs `body` in a process that runs nothing else; `name` is the name of the calling test.
/// Returns in the parent when the child has succeeded, and panics with its output otherwise.
#[track_caller]
pub fn in_own_process(name: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        body();
        return;
    }
    let output = Command::new(env::current_exe().expect("own path"))
        .args(["--exact", &full_name(name), "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .expect("start child");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name}: {}\n{stdout}\n{stderr}",
        output.status
    );
}

/// A connected pair; the test is over without one.
pub fn pair() -> (OwnedFd, OwnedFd) {
    seqpacket_pair().expect("socketpair")
}

/// `count` times the same open file.
pub fn many(fd: &OwnedFd, count: usize) -> Vec<BorrowedFd<'_>> {
    vec![fd.as_fd(); count]
}

/// A pipe: read end, write end. What was received is the write end when its bytes arrive.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK).expect("pipe")
}

/// Whether all write ends of the pipe are closed, in this process and in flight.
pub fn is_write_side_closed(read_end: &OwnedFd) -> bool {
    nix::unistd::read(read_end, &mut [0; 1]) == Ok(0)
}

/// Numbers of this process's open fds. Needs room for one more fd.
pub fn open_fds() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let listed: Vec<i32> = numbers.collect();
    // The listing's own fd is closed by now.
    listed.into_iter().filter(|fd| is_open(*fd)).collect()
}

/// Whether fd number `fd` is open.
pub fn is_open(fd: i32) -> bool {
    // SAFETY: F_GETFD only reads.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Sets the soft limit of RLIMIT_NOFILE; returns the old one.
pub fn set_nofile(soft: u64) -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (old, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("setrlimit");
    old
}

/// Sends through libc, past the crate's checks. `bytes` and `fds` may be empty.
pub fn raw_send(sock: &OwnedFd, bytes: &[u8], fds: &[i32]) {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights[..] };
    let iov = [io::IoSlice::new(bytes)];
    sendmsg::<()>(sock.as_raw_fd(), &iov, control, MsgFlags::MSG_DONTWAIT, None).expect("raw send");
}

/// One byte through libc: what the kernel says without the crate.
pub fn raw_recv(sock: &OwnedFd) -> nix::Result<usize> {
    use nix::sys::socket::{MsgFlags, recv};
    recv(sock.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT)
}

/// Receives into a scratch buffer: the bytes, and the message.
pub fn receive(
    sock: &OwnedFd,
    fds: &mut ReceivedFds,
) -> Result<(Vec<u8>, fdbroker_scm::Message), fdbroker_scm::RecvError> {
    let mut buf = [0; 4096];
    let message = fdbroker_scm::recv(sock.as_fd(), &mut buf, fds)?;
    Ok((buf[..message.len].to_vec(), message))
}
