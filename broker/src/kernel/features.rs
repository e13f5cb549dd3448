//! The features of newer kernels, each with the fallback that older ones get, and what the kernel
//! says of the process at the other end of a socket. Must never be called with an fd that a call
//! here could block on: all are safe on any fd.

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `SO_PASSRIGHTS`, Linux 6.16 (include/uapi/asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;
/// `SO_PEERGROUPS`, Linux 4.13 (include/uapi/asm-generic/socket.h).
const SO_PEERGROUPS: libc::c_int = 59;
/// `F_DUPFD_QUERY`, Linux 6.10 (include/uapi/linux/fcntl.h).
const F_DUPFD_QUERY: libc::c_int = 1027;
/// `KCMP_FILE` (include/uapi/linux/kcmp.h).
const KCMP_FILE: libc::c_int = 0;

sockopt_impl!(PassRights, SetOnly, libc::SOL_SOCKET, SO_PASSRIGHTS, bool);

/// Which features of newer kernels may be used. A feature that is allowed and absent falls back by
/// itself; one that is not allowed takes the fallback at once, which is how the tests reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// SO_PEERPIDFD, else pidfd_open(2) on the peer's pid.
    pub peer_pidfd: bool,
    /// pidfd_open(2), else the socket's end alone tells of the peer's death.
    pub pidfd_open: bool,
    /// F_DUPFD_QUERY, else kcmp(2).
    pub dupfd_query: bool,
    /// SO_PASSRIGHTS, else fds that nobody asked for are received and closed.
    pub pass_rights: bool,
}

/// The processor's time that a short message takes here, from a send to its receipt in the same
/// thread, whatever else the machine does: a 16th of what 16 of them take in microseconds, the
/// least of eight tries.
///
/// # Errors
/// EMFILE and its like: there is no socket to try it with.
pub fn message_us() -> io::Result<u64> {
    let (one, other) = fdbroker_scm::seqpacket_pair()?;
    let (mut bytes, mut no_fds) = ([0; 64], fdbroker_scm::ReceivedFds::with_capacity(0));
    let mut least = u64::MAX;
    for _ in 0..8 {
        let began = super::thread_cpu_us();
        for _ in 0..16 {
            let _ = fdbroker_scm::send(one.as_fd(), &bytes, &[]);
            let _ = fdbroker_scm::recv(other.as_fd(), &mut bytes, &mut no_fds);
        }
        least = least.min(super::thread_cpu_us() - began);
    }
    Ok(least / 16)
}

impl KernelFeatures {
    /// Each may be used where the kernel has it.
    pub const ALL: KernelFeatures =
        KernelFeatures { peer_pidfd: true, pidfd_open: true, dupfd_query: true, pass_rights: true };

    /// Those that this kernel has.
    ///
    /// # Errors
    /// EMFILE and its like: there is no fd to try it with.
    pub fn detect() -> io::Result<Self> {
        let (one, other) = fdbroker_scm::seqpacket_pair()?;
        let one = one.as_fd();
        let duplicate = one.try_clone_to_owned()?;
        let has_query = |a: BorrowedFd<'_>, b: BorrowedFd<'_>| {
            // SAFETY: compares two fds of this process, touches no memory.
            unsafe { libc::fcntl(a.as_raw_fd(), F_DUPFD_QUERY, b.as_raw_fd()) == 1 }
        };
        Ok(KernelFeatures {
            peer_pidfd: peer_pidfd(one, 0, 0, Self { pidfd_open: false, ..Self::ALL }).is_some(),
            pidfd_open: pidfd_open(std::process::id()).is_some(),
            dupfd_query: has_query(one, duplicate.as_fd()),
            pass_rights: setsockopt(&other, PassRights, &false).is_ok(),
        })
    }

    /// All but those named in `list`, separated by commas; `Err` is the name that is none.
    pub fn without(list: &str) -> Result<Self, String> {
        let mut features = Self::ALL;
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "peer_pidfd" => features.peer_pidfd = false,
                "pidfd_open" => features.pidfd_open = false,
                "dupfd_query" => features.dupfd_query = false,
                "pass_rights" => features.pass_rights = false,
                other => return Err(other.to_owned()),
            }
        }
        Ok(features)
    }
}

/// The supplementary groups of the process at the other end of `socket` when it connected, at most
/// `most` of them; ERANGE when it has more.
pub fn peer_groups(socket: BorrowedFd<'_>, most: usize) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; most];
    let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..])).unwrap_or(0);
    // SAFETY: the buffer is `bytes` long, and the kernel writes at most so many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(bytes as usize / size_of::<u32>());
    Ok(groups)
}

/// A pidfd of the process at the other end of `socket`, `pid` and `uid` being what SO_PEERCRED
/// says; `None` when there is no way to have one: then only the socket's end tells of its death.
pub fn peer_pidfd(
    socket: BorrowedFd<'_>,
    pid: u32,
    uid: u32,
    features: KernelFeatures,
) -> Option<OwnedFd> {
    if features.peer_pidfd
        && let Ok(pidfd) = getsockopt(&socket, sockopt::PeerPidfd)
    {
        return Some(pidfd);
    }
    if !features.pidfd_open || pid == 0 {
        return None;
    }
    // The peer may have died already, with its socket held by an heir, and its pid may be another
    // process's by now. So the uid is compared once the pidfd has fixed the process. Should a
    // process of the same uid have the pid, the dead peer's connection ends when that process does.
    let pidfd = pidfd_open(pid)?;
    is_owned_by(pid, uid).then_some(pidfd)
}

/// pidfd_open(2), close-on-exec; `None` when the kernel refuses.
pub fn pidfd_open(pid: u32) -> Option<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    // SAFETY: takes two numbers, touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: a new fd that nobody else knows; pidfd_open(2) sets close-on-exec.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether process `pid` is one of `uid`: the directory belongs to its effective uid, dumpable or
/// not (proc(5)).
fn is_owned_by(pid: u32, uid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| it.uid() == uid)
}

/// Whether two fds are of one open file description; `None` when the kernel does not say (before
/// 6.10 without kcmp(2)).
pub fn is_same_file(
    a: BorrowedFd<'_>,
    b: BorrowedFd<'_>,
    features: KernelFeatures,
) -> Option<bool> {
    if features.dupfd_query {
        // SAFETY: compares two fds of this process, touches no memory.
        match unsafe { libc::fcntl(a.as_raw_fd(), F_DUPFD_QUERY, b.as_raw_fd()) } {
            0 => return Some(false),
            1 => return Some(true),
            _ => {}
        }
    }
    let pid = std::process::id();
    // SAFETY: compares two fds of this process, touches no memory.
    let order =
        unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, a.as_raw_fd(), b.as_raw_fd()) };
    match order {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}

/// Lets the kernel refuse fds sent to `socket`, at the sender. Without the feature nothing happens:
/// they are received and closed.
pub fn refuse_rights(socket: BorrowedFd<'_>, features: KernelFeatures) {
    if features.pass_rights {
        let _ = setsockopt(&socket, PassRights, &false);
    }
}

/// Lets fds be sent to `socket` again.
pub fn accept_rights(socket: BorrowedFd<'_>, features: KernelFeatures) {
    if features.pass_rights
        && let Err(error) = setsockopt(&socket, PassRights, &true)
        && error != Errno::ENOPROTOOPT
    {
        log::error!("a client cannot deposit: {error}");
    }
}
