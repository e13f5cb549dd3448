//! Pages of the attacker's for which the kernel waits as long as the attack goes on (userfaultfd):
//! in whatever call it copies to them or from them, with whatever lock that has. Must never be left
//! to be filled: who waits ends with this process.

use crate::attack::Attack;
use crate::attacks::{hung, shared_end};
use crate::support::memory::memfd;
use crate::wire::{Conn, Push, block, nap, stopped};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::socket::{Shutdown, shutdown};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

// Numbers of linux/userfaultfd.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

const PAGE: usize = 4096;
const PAGES: usize = 4;

/// Clients at a time, and allocations of each.
const CLIENTS: usize = 12;
const BLOCKS: usize = 4;

/// Until a call that is to hang does.
const TIME_TO_HANG: Duration = Duration::from_millis(20);

/// Every socket of a client is held in recvmsg, as in shared-end.
pub fn ends(attack: &mut Attack) {
    let pages = Pages::new();
    hung::give_up_root(attack);
    shared_end::hold_all(attack, pages.at(0));
}

/// All that the broker is sent waits: its memory is locked by a write that hangs, and its message
/// is half sent.
pub fn everywhere(attack: &mut Attack) {
    let pages = Pages::new();
    let (bytes, message) = (pages.at(1), pages.at(2));
    hung::give_up_root(attack);
    let file = memfd(c"written", PAGE, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL);
    let written = file.try_clone().expect("dup");
    // SAFETY: the kernel alone reads the page, and it does not come.
    let mut waiting = vec![spawn(move || unsafe {
        libc::pwrite(written.as_raw_fd(), bytes as *const libc::c_void, PAGE, 0);
    })];
    std::thread::sleep(TIME_TO_HANG);
    let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
    let mut clients = Vec::new();
    while !stopped() {
        if clients.len() >= CLIENTS {
            nap();
            continue;
        }
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { break };
        let shared = conn.share(&mut attack.inbox, file.as_fd(), &blocks);
        let handles: Vec<_> = shared.iter().map(|it| it.handle.get()).collect();
        attack.tally.wrong += u64::from(handles.len() < BLOCKS && !stopped());
        let bytes = conn.acquire(&handles, 1000);
        let is_served =
            conn.push(&bytes, &[]) == Push::Sent && conn.drain_some(&mut attack.inbox, |_| {});
        attack.tally.wrong += u64::from(!is_served && !stopped());
        waiting.push(send(&conn, message, file.try_clone().expect("dup")));
        std::thread::sleep(TIME_TO_HANG);
        // The broker ends every second one, whose message is under way still.
        if clients.len() % 2 == 1 {
            let _ = shutdown(conn.socket.as_raw_fd(), Shutdown::Both);
        }
        attack.tally.tries += 1;
        clients.push(conn);
        if clients.len() == 1 {
            attack.begin();
        }
    }
    attack.tally.wrong += waiting.iter().filter(|it| it.is_finished()).count() as u64;
}

/// Sends an fd, and bytes that do not come.
fn send(conn: &Conn, page: usize, fd: OwnedFd) -> JoinHandle<()> {
    let socket = conn.socket.try_clone().expect("dup");
    spawn(move || {
        // SAFETY: the page is mapped for good; only the kernel touches it.
        let bytes = unsafe { std::slice::from_raw_parts(page as *const u8, 64) };
        let _ = fdbroker_scm::send(socket.as_fd(), bytes, &[fd.as_fd()]);
    })
}

/// Pages that nobody fills.
struct Pages {
    begin: usize,
}

impl Pages {
    /// Made as root: of others the kernel's own faults are not held up, unless
    /// vm.unprivileged_userfaultfd is 1.
    fn new() -> Pages {
        let length = NonZeroUsize::new(PAGES * PAGE).expect("not 0");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new private memory, never unmapped.
        let memory = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) };
        let begin = memory.expect("memory").as_ptr() as usize;
        // SAFETY: takes flags; the fd is nobody else's.
        let fd = unsafe {
            let number = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            OwnedFd::from_raw_fd(Errno::result(number as i32).expect("userfaultfd"))
        };
        ioctl(&fd, UFFDIO_API, &mut [UFFD_API, 0, 0, 0]);
        let (at, length) = (begin as u64, (PAGES * PAGE) as u64);
        ioctl(&fd, UFFDIO_REGISTER, &mut [at, length, UFFDIO_REGISTER_MODE_MISSING, 0]);
        // For as long as this process lives.
        std::mem::forget(fd);
        Pages { begin }
    }

    fn at(&self, number: usize) -> usize {
        self.begin + number * PAGE
    }
}

fn ioctl(fd: &OwnedFd, request: u32, argument: &mut [u64; 4]) {
    // SAFETY: both requests take a struct of at most four such words.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument.as_mut_ptr()) };
    Errno::result(done).expect("an ioctl of userfaultfd");
}
