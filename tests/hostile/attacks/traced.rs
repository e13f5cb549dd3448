//! Clients that another process has stopped by ptrace(2), in each state that a connection can have,
//! and clients whose address space is locked. Must never leave a stopped process behind: each ends
//! with its tracer, or with the file server.

use crate::attack::Attack;
use crate::attacks::{hung, stopped as owners};
use crate::support::memory::{all_seals, memfd};
use crate::support::peer::limit_time;
use crate::support::raw::hello;
use crate::wire::{Conn, Push, block, connect_now, nap, stopped};
use fdbroker_scm::ReceivedFds;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{Signal, kill};
use nix::sys::uio::pwrite;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pause};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Connections of a stopped process that have said nothing when it is stopped.
const SILENT: usize = 4;

/// How often all of its memory is asked for while it stands still, and while it ends.
const ROUNDS: usize = 4;

/// Until who reads something of a locked process hangs.
const TIME_TO_HANG: Duration = Duration::from_millis(20);

/// How long the parent waits for the child's word.
const PATIENCE: Duration = Duration::from_secs(20);

/// A child connects, and is stopped. What was sent for it before, and is sent for it now, is
/// answered or waits; then it ends, and is stopped once more before its sockets are closed.
pub fn clients(attack: &mut Attack) {
    let fd = memfd(c"traced", 4096, all_seals());
    let mut is_first = true;
    while !stopped() {
        let (ours, theirs) = fdbroker_scm::seqpacket_pair().expect("a pair");
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        // SAFETY: the child uses what is its own: the other thread only waits for a line and holds
        // no lock of ours.
        let child = match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                limit_time(60);
                let _all = be_a_client(attack, fd.as_fd(), theirs.as_fd(), writer);
                loop {
                    pause();
                }
            }
            ForkResult::Parent { child } => child,
        };
        drop((theirs, writer));
        let handles = owners::hear(&reader);
        let traced = Traced::stop(child);
        if std::mem::take(&mut is_first) {
            attack.begin();
        }
        let silent = hear_sockets(ours.as_fd());
        let mut conn = Conn::welcome(&attack.socket, &mut attack.inbox);
        for is_ending in [false, true] {
            if is_ending {
                traced.begin_to_end();
            } else {
                greet(attack, &silent);
            }
            for _ in 0..ROUNDS {
                let Some(conn) = conn.as_mut().filter(|_| !stopped()) else { break };
                owners::ask_for(attack, conn, &handles);
            }
        }
    }
}

/// In each state at once: nothing said, hello said, an owner, a reader that does not read.
fn be_a_client(
    attack: &mut Attack,
    fd: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    writer: OwnedFd,
) -> Option<impl Sized> {
    // Else a process that has changed its user cannot be traced.
    set_dumpable(true).expect("prctl");
    say_sockets(&attack.socket, parent);
    let mut unjoined = Conn::silent(&attack.socket)?;
    unjoined.push_hello(&hello());
    let (owner, handles) = owners::share(attack, fd)?;
    let mut full = Conn::welcome(&attack.socket, &mut attack.inbox)?;
    let some = &handles[..handles.len().min(64)];
    loop {
        let bytes = full.acquire(some, 1000);
        if full.push(&bytes, &[]) != Push::Sent {
            break;
        }
    }
    owners::tell(writer, &handles);
    Some((unjoined, owner, full))
}

/// The hellos of a process that stands still: it is looked at now.
fn greet(attack: &mut Attack, silent: &[OwnedFd]) {
    for socket in silent {
        let socket = socket.try_clone().expect("dup");
        let mut conn = Conn::at(&attack.socket, socket);
        conn.push_hello(&hello());
        let is_welcome = conn.await_welcome(&mut attack.inbox);
        attack.tally.wrong += u64::from(!is_welcome && !stopped());
    }
}

/// A process whose address space is locked, and which is traced besides, has connections: all that
/// they need is served.
pub fn mapping(attack: &mut Attack) {
    let (ours, theirs) = fdbroker_scm::seqpacket_pair().expect("a pair");
    // SAFETY: as above.
    let child = match unsafe { fork() }.expect("fork") {
        ForkResult::Child => {
            lock_own_memory(attack, theirs.as_fd());
            std::process::exit(0);
        }
        ForkResult::Parent { child } => child,
    };
    drop(theirs);
    hung::give_up_root(attack);
    let silent = hear_sockets(ours.as_fd());
    while !stopped() && !is_locked(child) {}
    // It cannot be stopped any more.
    let _ = ptrace(libc::PTRACE_SEIZE, child, 0);
    let fd = memfd(c"traced", 4096, all_seals());
    for socket in silent {
        let mut conn = Conn::at(&attack.socket, socket);
        conn.push_hello(&hello());
        let is_served = conn.await_welcome(&mut attack.inbox)
            && !conn.share(&mut attack.inbox, fd.as_fd(), &[block(0)]).is_empty();
        attack.tally.wrong += u64::from(!is_served && !stopped());
        attack.tally.tries += 1;
    }
    attack.begin();
    while !stopped() {
        nap();
    }
}

/// Connects, then unmaps a page that is to be written back to a server that has stopped.
fn lock_own_memory(attack: &Attack, parent: BorrowedFd<'_>) {
    let (path, _) = hung::file_and_user(attack);
    let file = File::options().read(true).write(true).open(path).expect("the server answers this");
    let file = ManuallyDrop::new(file);
    hung::give_up_root(attack);
    pwrite(&*file, &[1], 4095).expect("it is kept by the kernel");
    set_dumpable(true).expect("prctl");
    say_sockets(&attack.socket, parent);
    let length = NonZeroUsize::new(4096).expect("not 0");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new memory, which nobody else knows; what takes its place is never used.
    unsafe {
        let page = mmap(None, length, access, MapFlags::MAP_SHARED, &*file, 0).expect("mmap");
        let same = Some(page.addr());
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        let _ = mmap_anonymous(same, length, access, flags);
    }
}

/// Whether who reads the memory of a process waits.
fn is_locked(process: Pid) -> bool {
    let path = format!("/proc/{process}/cmdline");
    let reader = std::thread::spawn(move || drop(std::fs::read(path)));
    std::thread::sleep(TIME_TO_HANG);
    !reader.is_finished()
}

/// Sends connections of this process to its parent.
fn say_sockets(path: &Path, parent: BorrowedFd<'_>) {
    let all: Vec<_> = (0..SILENT).filter_map(|_| connect_now(path)).collect();
    let fds: Vec<_> = all.iter().map(AsFd::as_fd).collect();
    fdbroker_scm::send(parent, &[0], &fds).expect("sent");
}

fn hear_sockets(child: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let mut fds = ReceivedFds::new();
    let _ = fdbroker_scm::recv_timeout(child, &mut [0], &mut fds, Some(PATIENCE));
    fds.drain().collect()
}

/// A child that this process traces; it is killed in the end.
struct Traced(Pid);

impl Traced {
    fn stop(child: Pid) -> Traced {
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACEEXIT;
        ptrace(libc::PTRACE_SEIZE, child, options).expect("ptrace");
        ptrace(libc::PTRACE_INTERRUPT, child, 0).expect("ptrace");
        waitpid(child, None).expect("it stops");
        Traced(child)
    }

    /// It stops as it exits: its sockets are open still.
    fn begin_to_end(&self) {
        kill(self.0, Signal::SIGTERM).expect("kill");
        for signal in [0, Signal::SIGTERM as i32] {
            ptrace(libc::PTRACE_CONT, self.0, signal).expect("ptrace");
            waitpid(self.0, None).expect("it stops");
        }
        assert!(std::fs::read_dir(format!("/proc/{}/fd", self.0)).is_ok_and(|it| it.count() > 0));
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        // Who has been stopped on its way out does not hear the signal.
        loop {
            let _ = ptrace(libc::PTRACE_CONT, self.0, 0);
            match waitpid(self.0, None) {
                Ok(WaitStatus::Signaled(..) | WaitStatus::Exited(..)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

fn ptrace(request: libc::c_uint, process: Pid, data: i32) -> nix::Result<()> {
    // SAFETY: none of the requests that are made here touches memory of this process.
    let done = unsafe { libc::ptrace(request, process.as_raw(), 0, data as libc::c_long) };
    Errno::result(done).map(drop)
}
