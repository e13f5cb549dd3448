//! _Fork(3), clone(2) and their system calls: children that no handler of fork(3) is told of. Must
//! never touch what a child shares with its parent.

use crate::limits::ARGUMENTS;
use crate::{raw, source};
use libc::{CLONE_FILES, CLONE_VM, c_int, c_long, c_void, pid_t};
use nix::errno::Errno;
use std::mem::transmute;
use std::ptr::{null_mut, with_exposed_provenance};
use std::sync::atomic::{AtomicPtr, Ordering};

pub type Body = unsafe extern "C" fn(*mut c_void) -> c_int;

unsafe extern "C" {
    // The C library's second name of clone.
    fn __clone(body: Body, stack: *mut c_void, flags: c_int, argument: *mut c_void, ...) -> c_int;
}

/// With one of these a child has no memory, or no fd table, of its own.
const SHARED: usize = (CLONE_VM | CLONE_FILES) as usize;

/// SYS_fork, SYS_clone and SYS_clone3.
///
/// # Safety
/// That of the system call.
pub unsafe fn by_number(number: c_long, args: [usize; ARGUMENTS]) -> isize {
    let [first, second, ..] = args;
    let (flags, stack) = match number {
        libc::SYS_clone => (first, second),
        // SAFETY: the caller's promise: `struct clone_args` begins with the flags, a u64.
        libc::SYS_clone3 if first != 0 => unsafe {
            (*with_exposed_provenance::<u64>(first) as usize, 0)
        },
        _ => (0, 0),
    };
    // SAFETY: the caller's promise.
    let call = || unsafe { raw::call(number, args) };
    if flags & SHARED != 0 || stack != 0 { call() } else { source::forking(call, |pid| *pid == 0) }
}

/// The C library's _Fork(3), which has no second name there; null: not looked for yet, or it has
/// none (glibc has it from 2.34).
static FORK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks for it. At the start: a signal's handler may call it, and the linker takes a lock.
pub fn look() {
    // SAFETY: a name that ends in 0.
    FORK.store(unsafe { libc::dlsym(libc::RTLD_NEXT, c"_Fork".as_ptr()) }, Ordering::Release);
}

/// _Fork(3).
///
/// # Errors
/// ENOSYS: this C library has none.
pub fn fork() -> Result<pid_t, Errno> {
    if FORK.load(Ordering::Acquire).is_null() {
        look();
    }
    let real = FORK.load(Ordering::Acquire);
    if real.is_null() {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: the C library's function of this name has this type.
    let real: extern "C" fn() -> pid_t = unsafe { transmute(real) };
    Ok(source::forking(|| real(), |pid| *pid == 0))
}

/// clone(2), as the C library has it: the child begins with `body`. `last`: what the flags ask for
/// (parent_tid, tls, child_tid).
///
/// # Safety
/// That of clone(2).
pub unsafe fn clone(
    body: Body,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    last: [*mut c_void; 3],
) -> c_int {
    let [parent_tid, tls, child_tid] = last;
    let is_shared = flags as usize & SHARED != 0;
    // On this stack, of which the child has a copy.
    let mut begun = (body, argument);
    let (body, argument): (Body, _) =
        if is_shared { (body, argument) } else { (run_child, (&raw mut begun).cast()) };
    // SAFETY: the caller's promise.
    let call = || unsafe { __clone(body, stack, flags, argument, parent_tid, tls, child_tid) };
    if is_shared { call() } else { source::forking(call, |_| false) }
}

/// # Safety
/// `begun` is that of [`clone`].
unsafe extern "C" fn run_child(begun: *mut c_void) -> c_int {
    source::begin_child();
    // SAFETY: the caller's promise; a pair of the parent's, in the child's copy of its stack.
    unsafe {
        let (body, argument) = *begun.cast::<(Body, *mut c_void)>();
        body(argument)
    }
}
