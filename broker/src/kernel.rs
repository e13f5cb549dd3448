//! System calls that nix has no safe wrapper for, and the features of newer kernels, each with the
//! fallback that older ones get. Must never be called with an fd that a call here could block on:
//! all are safe on any fd.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;

/// `SO_PASSRIGHTS`, Linux 6.16 (include/uapi/asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;
/// `SO_PEERPIDFD`, Linux 6.5 (include/uapi/asm-generic/socket.h).
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PEERGROUPS`, Linux 4.13 (include/uapi/asm-generic/socket.h).
const SO_PEERGROUPS: libc::c_int = 59;
/// `F_DUPFD_QUERY`, Linux 6.10 (include/uapi/linux/fcntl.h).
const F_DUPFD_QUERY: libc::c_int = 1027;
/// `KCMP_FILE` (include/uapi/linux/kcmp.h).
const KCMP_FILE: libc::c_int = 0;

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

impl KernelFeatures {
    /// Everything allowed.
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
            pass_rights: set_pass_rights(other.as_fd(), false).is_ok(),
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

/// The supplementary groups of the process at the other end of `socket` when it connected, at most `most` of them;
/// ERANGE when it has more.
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
        && let Ok(fd) = get_int_option(socket, SO_PEERPIDFD)
    {
        // SAFETY: the kernel has just installed this fd for us, close-on-exec, and nobody else
        // knows it.
        return Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    if !features.pidfd_open || pid == 0 {
        return None;
    }
    // The pid can be another process's by now, if the peer has died already and an heir holds its
    // socket. So the uid is compared after the pidfd fixed the process; what remains ends a dead
    // peer's connection at another time.
    let pidfd = pidfd_open(pid)?;
    is_owned_by(pid, uid).then_some(pidfd)
}

/// pidfd_open(2), close-on-exec; `None` when the kernel refuses.
fn pidfd_open(pid: u32) -> Option<OwnedFd> {
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
    if !features.pass_rights {
        return;
    }
    let _ = set_pass_rights(socket, false);
}

/// Lets fds be sent to `socket` again.
pub fn accept_rights(socket: BorrowedFd<'_>, features: KernelFeatures) {
    if features.pass_rights
        && let Err(error) = set_pass_rights(socket, true)
        && error.raw_os_error() != Some(libc::ENOPROTOOPT)
    {
        log::error!("a client cannot deposit: {error}");
    }
}

fn set_pass_rights(socket: BorrowedFd<'_>, is_on: bool) -> io::Result<()> {
    let value = libc::c_int::from(is_on);
    // SAFETY: the pointer and the length are those of one int, which the call only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives free memory of the allocator back to the system, that between pieces in use included. Only
/// glibc has to be told.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, locks the allocator while it works, moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn get_int_option(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = -1;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the pointers are to one int and its length, which the call may write.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match result {
        0 if value >= 0 => Ok(value),
        0 => Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether there is something to read or, of a listening socket, a connection to accept, now.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Accepts a connection: close-on-exec and non-blocking.
pub fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    use nix::sys::socket::{SockFlag, accept4};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: accept4(2) has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel says of an fd without asking its file system: never blocks, on any fd.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// `S_IFMT` bits of the mode; 0 for anonymous inodes.
    pub file_type: u32,
    /// Hard links.
    pub links: u32,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Memory, or disk, that is allocated for it, bytes.
    pub allocated_bytes: u64,
    /// Major number of a device file.
    pub rdev_major: u32,
    /// Minor number of a device file.
    pub rdev_minor: u32,
    /// Of its file system.
    pub device: Device,
}

/// Major and minor number.
pub type Device = (u32, u32);

/// statx(2) with `AT_EMPTY_PATH | AT_STATX_DONT_SYNC`.
pub fn stat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    let mut buffer = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let wanted = libc::STATX_TYPE
        | libc::STATX_INO
        | libc::STATX_SIZE
        | libc::STATX_NLINK
        | libc::STATX_BLOCKS;
    // SAFETY: an empty C string and a buffer of the right size, both valid for the call.
    let result = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            wanted,
            buffer.as_mut_ptr(),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before and filled by the call; every bit pattern is valid.
    let statx = unsafe { buffer.assume_init() };
    Ok(Stat {
        file_type: u32::from(statx.stx_mode) & libc::S_IFMT,
        links: statx.stx_nlink,
        inode: statx.stx_ino,
        size_bytes: statx.stx_size,
        // In units of 512 bytes, whatever the file system (statx(2)).
        allocated_bytes: statx.stx_blocks.saturating_mul(512),
        rdev_major: statx.stx_rdev_major,
        rdev_minor: statx.stx_rdev_minor,
        device: (statx.stx_dev_major, statx.stx_dev_minor),
    })
}

/// CLOCK_MONOTONIC in microseconds: the same for every process of this boot.
pub fn monotonic_us() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has this clock");
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    seconds * 1_000_000 + nanos / 1000
}

/// When a process was started, in clock ticks since boot, the low 32 bits (proc_pid_stat(5), field 22). `None`: it is in
/// another PID namespace, or gone.
pub fn started(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after..]).ok()?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(ticks as u32)
}

/// `N` bytes of getrandom(2). Blocks only before the kernel's generator is seeded, early in boot.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the pointer and the length are those of `bytes`.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    match usize::try_from(got) {
        Ok(got) if got == N => Ok(bytes),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// The calling thread's id, as the robust futex wants it.
pub fn thread_id() -> u32 {
    nix::unistd::gettid().as_raw().unsigned_abs()
}

/// Ignores SIGPIPE: grants are sent without MSG_NOSIGNAL. Rust programs do so from the start; a
/// host program may not.
pub fn ignore_sigpipe() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: sets a disposition, no handler of ours runs.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
}

/// Takes over an fd that the starter of this process named by number.
///
/// # Errors
/// EBADF when it is not open.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: asks for the fd's flags and touches no memory; any number is allowed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sets close-on-exec, touches no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
    // SAFETY: it is open (just asked), and by the contract of `--ready-fd` and `--until-eof` it was
    // handed to this process for this use alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Grows this process's fd table to `cap` places at once. Before the first thread starts: later
/// each doubling would stall every thread for milliseconds.
///
/// # Errors
/// EINVAL when `cap` is over RLIMIT_NOFILE; ENOMEM.
pub fn grow_fd_table(any: BorrowedFd<'_>, cap: u64) -> nix::Result<()> {
    use nix::fcntl::{FcntlArg, fcntl};
    let last = RawFd::try_from(cap.saturating_sub(1)).map_err(|_| nix::errno::Errno::EINVAL)?;
    // F_DUPFD and not dup2: it takes the lowest free place from `last` on and cannot hit an fd that
    // is in use.
    let fd = fcntl(any, FcntlArg::F_DUPFD_CLOEXEC(last))?;
    nix::unistd::close(fd)
}

/// Gives the calling thread a table of fds of its own, without any fd but stderr where that is kept: while threads share
/// one, the kernel counts references at each use of an fd. Best effort.
pub fn leave_fd_table(keeps_stderr: bool) {
    let first = if keeps_stderr { 3 } else { 0 };
    // SAFETY: takes numbers; no fd of the process is closed, because the new table is made without them (close_range(2)).
    let has_left =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if keeps_stderr && has_left == 0 {
        // SAFETY: takes numbers, and closes fds of the thread's own table.
        unsafe { libc::syscall(libc::SYS_close_range, 0, 1, 0) };
    }
}

/// Head of a thread's robust list (linux/futex.h, `struct robust_list_head`).
#[derive(Debug)]
#[repr(C)]
pub struct RobustListHead {
    /// Address of the first entry; of the head itself when the list is empty.
    pub first: AtomicU64,
    /// From an entry to its futex word, in bytes.
    pub futex_offset: i64,
    /// Entry about to be inserted or removed, 0 = none.
    pub pending: u64,
}

/// Tells the kernel which robust list the calling thread has, in place of the C library's.
///
/// # Safety
/// `head` and the entries it names stay valid until the thread has ended, and the thread never
/// locks a robust mutex of the C library.
pub unsafe fn set_robust_list(head: *const RobustListHead) -> io::Result<()> {
    // SAFETY: the kernel keeps the address and reads it when the thread ends; the caller answers
    // for its validity.
    let result =
        unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustListHead>()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
