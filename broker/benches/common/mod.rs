//! What the benchmarks share: one core, a process started with an fd, medians. Must never assert a
//! time.

pub mod broker;
pub mod wire;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;

/// No more fds than this are asked for, whatever the hard limit.
const MOST_FDS: u64 = 1 << 20;

/// The number that follows an argument of this name.
pub fn number_after(name: &str) -> Option<usize> {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == name)?;
    Some(args.get(at + 1)?.parse().expect("a number"))
}

/// A quantile of some times, in us.
pub fn quantile_us(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0
}

/// Raises the soft limit on fds, and gives it.
pub fn raise_nofile() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    let limit = hard.min(MOST_FDS);
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("up to the hard limit is allowed");
    usize::try_from(limit).expect("at most MOST_FDS")
}

/// Pins this process, and so its children, to the last CPU it may run on.
pub fn pin_to_one_cpu() -> usize {
    let myself = Pid::from_raw(0);
    let allowed = sched_getaffinity(myself).expect("affinity");
    let cpu = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let cpu = cpu.expect("this process runs somewhere");
    let mut one = CpuSet::new();
    one.set(cpu).expect("a CPU of this machine");
    sched_setaffinity(myself, &one).expect("affinity");
    cpu
}

/// Connects to a SEQPACKET socket.
pub fn connect_to(path: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("socket");
    connect(sock.as_raw_fd(), &UnixAddr::new(path).expect("a short path")).expect("connect");
    sock
}

/// Makes `fd` the child's fd 3, open across exec.
pub fn give_fd_3(command: &mut Command, fd: i32) {
    let dup = move || match fd {
        // dup2 onto itself would leave close-on-exec set.
        // SAFETY: fcntl is async-signal-safe and touches no memory of this process.
        3 => unsafe { libc::fcntl(3, libc::F_SETFD, 0) },
        // SAFETY: as above, for dup2.
        _ => unsafe { libc::dup2(fd, 3) },
    };
    // SAFETY: `dup` only makes async-signal-safe calls.
    unsafe {
        command.pre_exec(move || match dup() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// Ends a child and waits for it.
pub fn end(child: &mut Child) {
    // One that has ended already is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}
