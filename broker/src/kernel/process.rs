//! System calls about this process and others that nix has no safe wrapper for. Must never wait for
//! another process.

use fdbroker_protocol::limits::COMMAND_BYTES;
use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getpid, getppid};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicU64;

/// Gives free memory of the allocator back to the system, also where it lies between pieces in use.
/// Only glibc has to be told.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, locks the allocator while it works, moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// CLOCK_MONOTONIC in microseconds: the same for every process of this boot.
pub fn monotonic_us() -> u64 {
    clock_us(ClockId::CLOCK_MONOTONIC)
}

/// The processor's time of this thread in microseconds, by a system call. Time that a hypervisor
/// stole is not in it where that tells the kernel, nor are interrupts where it accounts for them
/// (CONFIG_IRQ_TIME_ACCOUNTING).
pub fn thread_cpu_us() -> u64 {
    clock_us(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_us(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("every kernel has these clocks");
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
    seconds * 1_000_000 + nanos / 1000
}

/// When a process was started, and its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// In clock ticks since boot, the low 32 bits (proc_pid_stat(5), field 22); 0: not known.
    pub ticks: u32,
    /// As in /proc/PID/comm, padded with zeros (field 2).
    pub command: [u8; COMMAND_BYTES],
}

impl Start {
    /// Of a process; `None`: it is in another PID namespace, or gone.
    pub fn of(pid: u32) -> Option<Self> {
        Start::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of the text of /proc/PID/stat.
    pub fn parse(stat: &[u8]) -> Option<Self> {
        // The name, in brackets, may hold anything.
        let begin = stat.iter().position(|byte| *byte == b'(')? + 1;
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
        let mut command = [0; COMMAND_BYTES];
        command.iter_mut().zip(stat.get(begin..end)?).for_each(|(to, from)| *to = *from);
        Some(Start { ticks: (ticks & 0xffff_ffff) as u32, command })
    }

    /// Milliseconds since then, as exact as a tick, modulo 2^32 ticks; `None`: not known.
    pub fn age_ms(&self) -> Option<u64> {
        use nix::time::{ClockId, clock_gettime};
        // Field 22 counts the time asleep, too.
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
        let tick = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
        let ticks = now.tv_sec() * tick + now.tv_nsec() * tick / 1_000_000_000;
        let ticks = (ticks.cast_unsigned() & 0xffff_ffff) as u32;
        let passed = u64::from(ticks.wrapping_sub(self.ticks));
        (self.ticks != 0).then_some(passed * 1000 / tick.cast_unsigned())
    }
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
/// host program may not. And SIGXFSZ: what RLIMIT_FSIZE does not allow is an error like any other.
pub fn ignore_signals_of_writes() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    for its in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        // SAFETY: sets a disposition, no handler of ours runs.
        let _ = unsafe { signal(its, SigHandler::SigIgn) };
    }
}

/// Clones the calling thread as a process of its own, which has this process's table of fds and a
/// copy of its memory (clone(2)). It does `run` and ends; it ends with the calling thread, too. No
/// signal but SIGKILL and SIGSTOP has an effect there.
///
/// # Safety
/// `run` neither allocates nor takes a lock: in the copy nobody gives back what another thread had
/// taken.
///
/// # Errors
/// Those of clone(2): EAGAIN at a limit of processes.
pub unsafe fn clone_with_fds(name: &CStr, run: impl FnOnce()) -> nix::Result<Pid> {
    let (former, parent) = (SigSet::thread_get_mask()?, getpid());
    SigSet::all().thread_block()?;
    let flags = libc::c_long::from(libc::CLONE_FILES | libc::SIGCHLD);
    // What follows the flags has another order on other architectures, and is nothing on all.
    const NOTHING: libc::c_long = 0;
    // SAFETY: as fork(2). The child goes on on a copy of this stack, and ends in this function.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, flags, NOTHING, NOTHING, NOTHING, NOTHING) };
    if child == 0 {
        let _end = EndOfChild;
        // SAFETY: takes numbers and a C string; nothing of this process runs at a signal.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        }
        if getppid() == parent {
            run();
        }
    }
    former.thread_set_mask()?;
    let pid = Errno::result(child)?;
    Ok(Pid::from_raw(i32::try_from(pid).expect("a pid is no larger")))
}

/// Ends the process, whatever way `run` ends.
struct EndOfChild;

impl Drop for EndOfChild {
    fn drop(&mut self) {
        // SAFETY: never returns, and runs nothing of this process's.
        unsafe { libc::_exit(0) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_when_of_this_process_then_its_name_and_age() {
        let start = Start::of(std::process::id()).expect("it is here");
        let name = std::fs::read("/proc/self/comm").expect("readable");
        assert_eq!(start.command[..name.len() - 1], name[..name.len() - 1]);
        assert_eq!(start.command[name.len() - 1..].iter().max(), Some(&0));
        // An age that has run over would be 497 days.
        assert!(start.age_ms().is_some_and(|age_ms| age_ms < 86_400_000), "{start:?}");
    }

    #[test]
    fn start_when_the_name_holds_brackets_and_numbers_then_read_to_the_last_bracket() {
        let stat = format!("77 (a) S 1 (\u{e9} ) R {}12345 9 9\n", "0 ".repeat(18));
        let start = Start::parse(stat.as_bytes()).expect("like one of the kernel's");
        assert_eq!(start.ticks, 12345);
        assert!(start.command.starts_with("a) S 1 (\u{e9} ".as_bytes()), "{:?}", start.command);
    }

    #[test]
    fn start_when_the_process_is_gone_or_the_text_is_torn_then_not_known() {
        assert_eq!(Start::of(u32::MAX), None);
        for torn in ["", "77", "77 )(", "77 (a", "77 (a) S 1 2"] {
            assert_eq!(Start::parse(torn.as_bytes()), None, "{torn}");
        }
        assert_eq!(Start::default().age_ms(), None);
    }
}
