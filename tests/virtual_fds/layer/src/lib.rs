//! The smallest layer: a function that exports a memfd, in the place of a driver's, and everything
//! else by fdbroker's crates for layers. Must never know what the programs of the tests do with
//! their fds.

mod broker;

use crate::broker::Registered;
use fdbroker_client::{Deadline, Deposit, MemoryKind};
use fdbroker_layer::State;
use libc::c_int;
use nix::sys::stat::fstat;
use std::os::fd::{BorrowedFd, RawFd};

/// The longest wait for the broker: only a hang exceeds it.
const TIMEOUT_MS: u32 = 20_000;

/// Run by the dynamic linker as a constructor.
#[used]
// SAFETY: the section holds pointers to such functions (System V ABI, "Initialization and
// Termination Functions").
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    fdbroker_virtual_fds::install(Registered::connection());
}

/// Exports `size` bytes of a sealed memfd, as a driver would export memory: a virtual fd, the same
/// one for the same memory; -1: no broker, or it refuses. The memfd stays the program's.
#[unsafe(no_mangle)]
pub extern "C" fn test_export(fd: c_int, size: usize) -> c_int {
    test_use_driver();
    fdbroker_virtual_fds::inside(|| export(fd, size as u64)).unwrap_or(-1)
}

/// What a program does that uses the driver and exports nothing.
#[unsafe(no_mangle)]
pub extern "C" fn test_use_driver() {
    Registered::connection().note_driver();
}

fn export(fd: RawFd, size_bytes: u64) -> Option<RawFd> {
    let broker = Registered::connection().connected()?;
    // SAFETY: the program keeps its fd open over the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let inode = fstat(fd).ok()?.st_ino;
    let mut deposit = Deposit::new(MemoryKind::Memfd, size_bytes);
    deposit.facts.owner_allocation_id = inode;
    // One address for each memory, far enough from the next.
    deposit.base = inode << 32;
    deposit.virtual_fd = true;
    let registered = broker.client.register(&deposit, fd, Deadline::from_ms(TIMEOUT_MS));
    let registration = registered.inspect_err(|error| eprintln!("test layer: {error}")).ok()?;
    let fd = registration.virtual_fd()?;
    broker.state.add(fd, registration);
    Some(fd.number())
}
