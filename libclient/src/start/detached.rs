//! Runs a program that is no child of this process: its parent ends at once. The caller's process
//! gets no SIGCHLD for either, no waitpid(-1) of its finds them, and its memory is not copied. Must
//! never allocate or take a lock between clone(2) and execve(2).

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::SigSet;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

/// Bytes of the stack of each of the two processes. They make some system calls, and a handler of
/// the program's cannot run there.
const STACK_BYTES: usize = 64 * 1024;

/// Signals are numbered from 1 to this.
const LAST_SIGNAL: c_int = 64;

/// What the two processes need, made before them.
struct Plan {
    program: CString,
    arguments: [*const c_char; 3],
    environment: Vec<*const c_char>,
    stdio: RawFd,
    /// The end of the second one's stack, where it begins.
    stack: *mut c_void,
    /// Why the program does not run, as an errno.
    failed: AtomicI32,
}

/// Runs `program` with one argument and an environment, in a session of its own, at `/`, with no
/// signal blocked or handled, and `stdio` as its first three fds.
///
/// # Errors
/// Those of clone(2) and execve(2).
pub(super) fn run(
    program: &Path,
    argument: &str,
    environment: &[Vec<u8>],
    stdio: BorrowedFd<'_>,
) -> nix::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::EINVAL);
    let (program, argument) = (text(program.as_os_str().as_bytes())?, text(argument.as_bytes())?);
    let variables = environment.iter().map(|it| text(it)).collect::<nix::Result<Vec<_>>>()?;
    // Above the three that it becomes.
    let number = fcntl(stdio, FcntlArg::F_DUPFD_CLOEXEC(3))?;
    // SAFETY: the kernel has just made this fd, so nothing else owns it.
    let stdio = unsafe { OwnedFd::from_raw_fd(number) };
    let (mut first, mut second) = (vec![0; STACK_BYTES], vec![0; STACK_BYTES]);
    let null = std::ptr::null();
    let plan = Plan {
        arguments: [c"fdbroker".as_ptr(), argument.as_ptr(), null],
        environment: variables.iter().map(|it| it.as_ptr()).chain([null]).collect(),
        program,
        stdio: stdio.as_raw_fd(),
        stack: end_of(&mut second),
        failed: AtomicI32::new(0),
    };
    // A handler of the program's that ran there would run in this process's memory.
    let former = SigSet::thread_get_mask()?;
    SigSet::all().thread_block()?;
    let parent = clone(begin, end_of(&mut first), &plan);
    // It has ended by now. ECHILD: a thread of the program has waited for all that there is.
    let _ = parent.map(|pid| waitpid(pid, Some(WaitPidFlag::__WALL)));
    former.thread_set_mask()?;
    parent?;
    match plan.failed.load(Ordering::Relaxed) {
        0 => Ok(()),
        errno => Err(Errno::from_raw(errno)),
    }
}

/// Where a stack that grows downwards begins.
fn end_of(stack: &mut [u8]) -> *mut c_void {
    let end = stack.as_mut_ptr_range().end;
    end.wrapping_sub(end.addr() % 16).cast()
}

/// A process in this one's memory, whose end is told to nobody. Returns when it has ended or runs
/// another program.
fn clone(
    run: extern "C" fn(*mut c_void) -> c_int,
    stack: *mut c_void,
    plan: &Plan,
) -> nix::Result<Pid> {
    let plan: *const Plan = plan;
    // SAFETY: stack and plan live until it returns, and the process touches nothing else.
    let pid = unsafe {
        libc::clone(run, stack, libc::CLONE_VM | libc::CLONE_VFORK, plan.cast_mut().cast())
    };
    Errno::result(pid).map(Pid::from_raw)
}

/// The first process: makes the second, and ends.
extern "C" fn begin(plan: *mut c_void) -> c_int {
    // SAFETY: as `run` passes it on.
    let plan = unsafe { &*plan.cast::<Plan>() };
    if let Err(errno) = clone(become_program, plan.stack, plan) {
        plan.failed.store(errno as i32, Ordering::Relaxed);
    }
    0
}

/// The second one.
extern "C" fn become_program(plan: *mut c_void) -> c_int {
    // SAFETY: as `run` passes it on.
    let plan = unsafe { &*plan.cast::<Plan>() };
    // SAFETY: system calls with numbers and pointers of the plan, all of them safe after fork(2).
    // The actions of signals are this process's own.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        for signal in 1..=LAST_SIGNAL {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        (0..3).for_each(|fd| {
            libc::dup2(plan.stdio, fd);
        });
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::execve(plan.program.as_ptr(), plan.arguments.as_ptr(), plan.environment.as_ptr());
    }
    plan.failed.store(Errno::last_raw(), Ordering::Relaxed);
    // A number that nobody reads.
    1
}
