//! Ends of the attacker's own sockets whose lock in the kernel it holds: a recvmsg copies into a
//! page that does not come, and the lock is held meanwhile. What the broker does with such an end
//! waits for ever; with its own end it need not. Must never wait for a thread that holds one: it
//! comes back only when the file server has ended.

use crate::attack::Attack;
use crate::attacks::hung;
use crate::support::memory::{all_seals, memfd};
use crate::support::peer::die_with_parent;
use crate::wire::{Conn, Push, await_ready, block, nap, stopped};
use fdbroker_client::{Client, Deadline};
use nix::poll::PollFlags;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

/// Clients whose ends are held, at most; each has some threads that hang.
const HELD_CLIENTS: usize = 12;

/// Allocations that are fetched ahead, so that fds lie in that socket.
const FETCHED: usize = 4;

/// What each client is left alone for: longer than the broker leaves unread fds in a socket.
const PAUSE: Duration = Duration::from_millis(150);

/// Memory of a process that forks: some 20 ms for each copy of its page tables.
const FORKING_BYTES: usize = 256 << 20;

/// Every socket of a client - its own, that for events, that for fds that are sent ahead - is held
/// in recvmsg for as long as the attack goes on. Then the broker has something for each: an answer,
/// an event, an fd, and the end.
pub fn held(attack: &mut Attack) {
    let page = hung::page(attack);
    hold_all(attack, page);
}

/// The same, with another page that does not come.
pub fn hold_all(attack: &mut Attack, page: usize) {
    let fd = memfd(c"held", 4096, all_seals());
    let mut all = Vec::new();
    while !stopped() {
        if all.len() >= HELD_CLIENTS {
            nap();
            continue;
        }
        let Some(client) = Held::new(attack, fd.as_fd()) else { return };
        client.sockets.iter().for_each(|socket| hold(socket, page));
        std::thread::sleep(PAUSE);
        attack.tally.tries += client.use_them();
        std::thread::sleep(PAUSE);
        client.leave();
        all.push(client);
        if all.len() == 1 {
            attack.begin();
        }
    }
}

/// Every end is read again and again, into pages that are always new, by a process that forks all
/// the time: each fault waits for a fork. Nothing is taken out, so that there is always something
/// to read.
pub fn forking(attack: &mut Attack) {
    die_with_parent();
    let length = NonZeroUsize::new(FORKING_BYTES).expect("not 0");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new private memory, never unmapped.
    let memory = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) };
    let memory = memory.expect("memory");
    // SAFETY: all of it is mapped, and nobody else knows it.
    unsafe { memory.write_bytes(1, FORKING_BYTES) };
    let fd = memfd(c"held", 4096, all_seals());
    let Some(client) = Held::new(attack, fd.as_fd()) else { return };
    for (index, socket) in client.sockets.iter().enumerate() {
        let socket = socket.try_clone().expect("dup");
        // A page for each, behind each other.
        let page = memory.as_ptr() as usize + index * 4096;
        std::thread::spawn(move || {
            while !stopped() {
                peek(socket.as_raw_fd(), page);
            }
        });
    }
    attack.begin();
    while !stopped() {
        fork_once();
        attack.tally.tries += client.use_them();
    }
}

/// Copies the page tables, by the bare call: handlers of fork(3) are of no use here.
fn fork_once() {
    // SAFETY: a clone that shares nothing, on a copy of this stack; the child ends at once.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match i32::try_from(child).expect("a pid") {
        // SAFETY: ends the child.
        0 => unsafe { libc::_exit(0) },
        child if child > 0 => drop(waitpid(Pid::from_raw(child), None)),
        _ => nap(),
    }
}

/// One look into a socket's queue, into a page that is not there.
fn peek(socket: RawFd, page: usize) {
    let address = NonNull::new(page as *mut libc::c_void).expect("mapped");
    // SAFETY: a page of this thread's own.
    let _ = unsafe { madvise(address, 4096, MmapAdvise::MADV_DONTNEED) };
    // SAFETY: as above; the kernel writes at most that page.
    unsafe { libc::recv(socket, address.as_ptr(), 4096, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
}

/// A client that reads nothing, and its sockets.
struct Held {
    conn: Conn,
    /// The real library, which has the socket for fds ahead. In dispatch mode: no thread of it
    /// reads. It is never dropped: at its end it would read its sockets, and not come back.
    _consumer: ManuallyDrop<Client>,
    handles: Vec<fdbroker_protocol::Handle>,
    sockets: Vec<OwnedFd>,
}

impl Held {
    /// `None`: it is time to end.
    fn new(attack: &mut Attack, fd: BorrowedFd<'_>) -> Option<Held> {
        let before = sockets();
        let mut conn = Conn::welcome(&attack.socket, &mut attack.inbox)?;
        let items: Vec<_> = (0..FETCHED).map(block).collect();
        let shared = conn.share(&mut attack.inbox, fd, &items);
        let handles: Vec<_> = shared.iter().map(|it| it.handle.get()).collect();
        if handles.is_empty() {
            // It was told to end while it waited for the answer.
            return None;
        }
        let builder = Client::builder().socket(&attack.socket).name("held").dispatch(true);
        let consumer = builder.reconnect(false).connect().ok()?;
        consumer.fetch_ahead(&handles, Deadline::from_ms(1000));
        // SAFETY: the fds are of this process, open while it has the connections.
        let borrow = |number: RawFd| unsafe { BorrowedFd::borrow_raw(number) };
        let new = sockets().difference(&before).copied().collect::<Vec<_>>();
        let copy = |number: RawFd| borrow(number).try_clone_to_owned().ok();
        let sockets = new.into_iter().filter_map(copy).collect();
        Some(Held { conn, _consumer: ManuallyDrop::new(consumer), handles, sockets })
    }

    /// Has the broker send to each socket; how many messages that took. Nothing is read.
    fn use_them(&self) -> u64 {
        let mut conn = Conn::of(self.conn.socket.try_clone().expect("dup"));
        let ids: Vec<_> = self.handles.iter().map(|it| it.id()).collect();
        // An answer with an fd, then the end of the memory, of which all holders are told.
        let messages = [conn.acquire(&self.handles, 1000), conn.unregister(&ids[..1])];
        messages.iter().map(|bytes| u64::from(conn.push(bytes, &[]) == Push::Sent)).sum()
    }

    /// The broker sees the end of both connections, while all ends are held still.
    fn leave(&self) {
        for socket in &self.sockets {
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }
}

/// Numbers of this process's sockets.
fn sockets() -> HashSet<RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc");
    let socket = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let link = std::fs::read_link(entry.path()).ok()?;
        let is_socket = link.to_str()?.starts_with("socket:");
        is_socket.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    entries.filter_map(socket).collect()
}

/// Receives from the socket into the page, in a thread of its own, as soon as there is something.
fn hold(socket: &OwnedFd, page: usize) {
    let socket = socket.try_clone().expect("dup");
    std::thread::spawn(move || {
        while !stopped() {
            await_ready(socket.as_fd(), PollFlags::POLLIN);
            // SAFETY: the page is mapped for good; only the kernel writes to it, and it does not
            // come.
            unsafe {
                libc::recv(socket.as_raw_fd(), page as *mut libc::c_void, 4096, libc::MSG_DONTWAIT)
            };
        }
    });
}
